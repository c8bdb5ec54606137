"""PANM: find the client's own cluster with a few models per round, for an unknown number of clusters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from dfl_lightning.callbacks.base import Selection
from dfl_lightning.callbacks.selection.known_clusters import log_matched, matched_names
from dfl_lightning.functional import (
    gradient_similarity,
    loss_similarity,
    panm_models_in_round,
    rematched_neighbours,
    same_cluster,
)
from dfl_lightning.links import LinkMemory, Links
from dfl_lightning.round.record import Round
from dfl_lightning.utils.errors import UserError

if TYPE_CHECKING:
    from dfl_lightning.round.federation import Federation


class PANM(Selection):
    """The choice of neighbours in the client's own cluster, in two stages (PANM, Li et al., arXiv 2203.12285).

        s_ij = alpha cos(u_i, u_j) + (1 - alpha) cos(h_i, h_j)          (`grad`, eq. 6)
        s_ij = 1 / F_i(w_j)                                             (`loss`, eq. 3)

    u_i is the update of client i in this round, h_i its change since the start of the run, and F_i(w_j) the loss of j's
    model on i's training data.

    In stage one (confident neighbour initialisation) a client compares `l` random others and its neighbours; the `k`
    most similar of them become its neighbours, and it learns from them. In stage two it learns from `k` random ones of
    its neighbours. Every `tau` rounds (heuristic neighbour matching) it compares `l` of them and `l` other clients, and
    a mixture of two Gaussians decides which of these are in its cluster. A neighbour that is out of reach or has
    dropped out is left out of the round and stays on the list.

    A client that is compared sends its model; with `grad` and alpha > 0 also its update, which cannot be computed from
    the model: the ledger counts it as a proxy of the size of the shared parameters.

    Args:
        metric: similarity of two clients, `grad` or `loss`, as above.
        k: number of neighbours to learn from in a round.
        l: number of others to compare in a round of stage one; in a matching, of neighbours and of others each.
        stage_one: rounds of stage one (T1); later rounds are stage two.
        tau: rounds between two matchings, counted from the first round of the run.
        alpha: weight of this round's cosine in `grad`; with 0 only the change since the start counts.
        candidates: clients that stage one draws the `l` others from: `new`: those that are not neighbours; `all`: all.
        matching: the group of a matching that is taken as the client's cluster. `oriented`: the one with the higher
            mean similarity; `unoriented`: the one that the neighbours are assigned to at first; `literal`: the one that
            the other clients are assigned to at first.
    """

    k: int  # a number only: with `all` there would be no choice
    supports_servers = False
    lists_candidates = False
    state = ("neighbours", "similarity")
    neighbour_counts = {"k": "k", "l": "l"}
    against_clock = "it compares and matches clients in rounds that are the same for all"

    def __init__(
        self,
        metric: Literal["grad", "loss"] = "grad",
        k: int = 5,
        l: int = 10,
        stage_one: int = 100,
        tau: int = 10,
        alpha: float = 0.5,
        candidates: Literal["new", "all"] = "new",
        matching: Literal["oriented", "unoriented", "literal"] = "oriented",
    ) -> None:
        for name, word, choices in (
            ("metric", metric, ("grad", "loss")),
            ("candidates", candidates, ("new", "all")),
            ("matching", matching, ("oriented", "unoriented", "literal")),
        ):
            if word not in choices:
                raise UserError(f"selection.{name}={word}; choose one of {', '.join(choices)}")
        if k < 0:
            raise UserError(f"selection.k={k}; it is a number of neighbours, 0 or more")
        for name, number, what in (
            ("l", l, "a number of clients to compare"),
            ("stage_one", stage_one, "a number of rounds"),
            ("tau", tau, "a number of rounds"),
        ):
            if number < 1:
                raise UserError(f"selection.{name}={number}; it is {what}, 1 or more")
        if not 0 <= alpha <= 1:
            raise UserError(f"selection.alpha={alpha}; it is a share between 0 and 1")
        self.metric, self.k, self.l, self.stage_one, self.tau = metric, k, l, stage_one, tau
        self.alpha, self.drawn_from, self.matching = alpha, candidates, matching
        self.row_sets = {"initial": "models"} if metric == "grad" and alpha < 1 else {}
        self.neighbours: Links  # the lists N_i
        self.similarity: LinkMemory  # last known similarities

    @classmethod
    def drawn_anew_from(cls, arguments: Mapping[str, Any]) -> int | None:
        """Return the first round of stage two, whose neighbours are a random part of the lists."""
        return int(arguments["stage_one"])

    def start(self, federation: Federation) -> None:
        """Begin without neighbours; remark on a run that ends before its first matching."""
        self.logs = ("models_by_formula", "matched", *matched_names(federation))
        self.neighbours, self.similarity = Links.empty(federation.num_nodes), LinkMemory.empty(federation.num_nodes)
        first = (self.stage_one // self.tau + 1) * self.tau
        rounds = federation.planned_rounds
        if rounds is not None and 0 < rounds < first:
            remark = (
                f"PANM matches no neighbours in {rounds} rounds (the first time would be after {first}): "
                f"lower selection.stage_one={self.stage_one} or selection.tau={self.tau}"
            )
            federation.remark(remark)

    def listed_links(self, federation: Federation) -> int:
        """Return about how many links a round lists: 2 (k + l) for each node, at most those of the graph."""
        links = len(federation.topology.linked(0))
        return min(links, 2 * (self.k + self.l) * federation.num_nodes)

    def initialises(self, index: int) -> bool:
        """Tell whether the round of that index is in stage one; rounds are counted from 0."""
        return index < self.stage_one

    def matches(self, index: int) -> bool:
        """Tell whether neighbours are matched in the round of that index, counted from 0.

        That is so in every tau-th round of stage two, if rounds are counted from 1 as in algorithm 1.
        """
        return index >= self.stage_one and (index + 1) % self.tau == 0

    def on_propose(self, round: Round) -> None:
        """Propose the neighbours in reach, and in rounds with comparisons also random others."""
        round.candidates = self.neighbours.intersection(round.available)
        if self.initialises(round.index) or self.matches(round.index):
            round.candidates = round.candidates.union(self._others(round, self.neighbours))

    def _others(self, round: Round, neighbours: Links) -> Links:
        """Draw `l` active clients for each receiver, neighbours among them only in stage one of `candidates: all`."""
        number = torch.where(self.limits(round) > 0, self.l, 0)  # a client with a limit of 0 compares no others
        up = round.available.between(senders=round.active)
        if self.drawn_from == "all" and not self.matches(round.index):
            return round.draw_links(up, number, "panm candidates")
        # draw enough that `l` are left without the neighbours, so that a complete graph need not be listed
        more = round.draw_links(up, torch.where(number > 0, number + neighbours.count, 0), "panm candidates")
        return round.draw_links(more.difference(neighbours), number, "panm strangers")

    def on_compare(self, round: Round) -> None:
        """Compare the drawn clients and the neighbours: all neighbours in stage one, `l` of them in a matching."""
        if not (self.initialises(round.index) or self.matches(round.index)):
            return
        compared = round.candidates.between(senders=round.active)
        if self.matches(round.index):
            sampled = round.draw_links(compared.intersection(self.neighbours), self.l, "panm sampled")
            compared = compared.difference(self.neighbours).union(sampled)
        similarity = self._similarity(round, compared)
        self.similarity.write_known(compared, similarity)
        round.similarity = compared.spread(similarity, round.candidates)
        round.scores = self.similarity.read(round.candidates)

    def on_select(self, round: Round) -> None:
        """Select the `k` most similar ones in stage one, `k` random neighbours in stage two."""
        limits = self.limits(round)
        if self.initialises(round.index):
            useless = (round.scores == 0) & (self.metric == "loss")  # infinite loss
            best = round.candidates.top(round.scores.masked_fill(useless, torch.nan), limits)
            round.selected = round.candidates.keep(best)
            # neighbours that are absent in this round stay on the list
            listed = round.selected.union(self.neighbours.difference(round.candidates))
            self.neighbours = listed.keep(listed.top(self.similarity.read(listed), limits))
            return
        if self.matches(round.index):
            self.neighbours = self._matched(round, self.neighbours, round.similarity)
        round.selected = round.draw_links(self.neighbours.intersection(round.candidates), limits, "panm gossip")

    def on_round_end(self, round: Round) -> None:
        """Log the paper's count of received models, and size, precision and recall of the neighbour lists."""
        formula = panm_models_in_round(round.index + 1, self.l, self.k, self.stage_one, self.tau)
        round.log("models_by_formula", formula)
        round.log("matched", len(self.neighbours) / round.num_nodes)
        log_matched(round, self.neighbours)

    def _matched(self, round: Round, neighbours: Links, similarity: Tensor) -> Links:
        """Return the neighbour lists after a matching.

        A receiver that compared none of its neighbours adds the most similar others instead.
        """
        seen = ~similarity.isnan()
        compared, similarity = round.candidates.keep(seen), similarity[seen]
        sampled = compared.within(neighbours)
        matched = same_cluster(similarity, compared, sampled, self.matching)
        lost = ~compared.any(sampled)
        joined = torch.where(lost[compared.receivers], compared.top(similarity, self.limits(round)), matched)
        return rematched_neighbours(neighbours, compared.keep(sampled), compared.keep(joined))

    def _similarity(self, round: Round, links: Links) -> Tensor:
        """Compute the similarity of each link, float64 [E]."""
        if self.metric == "loss":
            return loss_similarity(round.loss_of(links))
        nothing = torch.zeros(len(links), dtype=torch.float64)
        updates = round.compare("trained", links, relative_to="start").cosines if self.alpha > 0 else nothing
        accumulated = round.compare("trained", links, relative_to="initial").cosines if self.alpha < 1 else nothing
        return gradient_similarity(updates, accumulated, self.alpha)
