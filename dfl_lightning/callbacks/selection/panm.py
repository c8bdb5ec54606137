"""PANM: find the client's own cluster with a few models a round, for an unknown number of clusters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from dfl_lightning.callbacks.base import Selection
from dfl_lightning.functional import (
    gradient_similarity,
    loss_similarity,
    neighbour_precision_recall,
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
    """Neighbours of the client's own cluster, found in two stages from a few models a round (PANM, arXiv 2203.12285).

    In stage one (confident neighbour initialisation) a client compares `l` random others and its neighbours; the `k`
    most similar of them become its neighbours, and it learns from them. In stage two it learns from `k` random ones of
    its neighbours; every `tau` rounds (heuristic neighbour matching) it compares `l` of them and `l` strangers, and a
    mixture of two Gaussians decides which of these are of its cluster. A neighbour that is out of reach or dropped out
    is left out of the round and stays on the list.

    A client that is compared sends its model; by `grad` with alpha > 0 also its update, which cannot be computed from
    the model: the ledger counts it as a proxy of the size of the shared parameters.

    Args:
        metric: `grad`: cosines of what two clients have learned, in this round and since the start (eq. 6); `loss`:
            one over the loss of the other's model on the client's own training data (eq. 3).
        k: neighbours to learn from in a round.
        l: others to compare in a round of stage one; in a matching, neighbours and strangers each.
        stage_one: rounds of stage one (T1); the others are stage two.
        tau: rounds between two matchings, counted from the first round of the run.
        alpha: share of this round's cosine in `grad`; 0 leaves the change since the start alone.
        candidates: from which stage one draws the `l` others: `new`: those that are not neighbours yet; `all`: all.
        matching: `oriented`: of the two groups that a matching finds, the more similar one is the client's own cluster;
            `unoriented`: the one that most neighbours started in; `literal`: the one that the strangers started in.
    """

    k: int  # a number only: `all` would leave nothing to find
    supports_servers = False
    lists_candidates = False
    state = ("neighbours", "similarity")
    neighbour_counts = {"k": "k", "l": "l"}

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
            ("l", l, "a number of clients to look at"),
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
        self.similarity: LinkMemory  # as it was seen last

    def start(self, federation: Federation) -> None:
        """Begin without neighbours; note a run that ends before its first matching."""
        of_clusters = () if federation.clusters is None else ("matched_precision", "matched_recall")
        self.logs = ("models_by_formula", "matched", *of_clusters)
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
        """Return twice the neighbours and strangers that each client compares, at most the links of the graph."""
        links = len(federation.topology.linked(0))
        return min(links, 2 * (self.k + self.l) * federation.num_nodes)

    def initialises(self, index: int) -> bool:
        """Tell whether a round is of stage one; rounds are counted from 0."""
        return index < self.stage_one

    def matches(self, index: int) -> bool:
        """Tell whether neighbours are matched in a round; as algorithm 1, it counts rounds from 1."""
        return index >= self.stage_one and (index + 1) % self.tau == 0

    def on_propose(self, round: Round) -> None:
        """Propose the neighbours in reach, and in rounds that compare others a uniform draw of these."""
        round.candidates = self.neighbours.intersection(round.available)
        if self.initialises(round.index) or self.matches(round.index):
            round.candidates = round.candidates.union(self._others(round, self.neighbours))

    def _others(self, round: Round, neighbours: Links) -> Links:
        """`l` random others of the active ones, which may be neighbours only in stage one by `candidates: all`."""
        number = torch.where(self.limits(round) > 0, self.l, 0)  # a client that learns from none compares none
        up = round.available.between(senders=round.active)
        if self.drawn_from == "all" and not self.matches(round.index):
            return round.draw(up, number, "panm candidates")
        # so many that `l` are left without the neighbours: a complete graph need not be written down
        more = round.draw(up, torch.where(number > 0, number + neighbours.count, 0), "panm candidates")
        return round.draw(more.difference(neighbours), number, "panm strangers")

    def on_compare(self, round: Round) -> None:
        """Compare those drawn, and the neighbours: all of them in stage one, `l` in a matching."""
        if not (self.initialises(round.index) or self.matches(round.index)):
            return
        compared = round.candidates.between(senders=round.active)
        if self.matches(round.index):
            sampled = round.draw(compared.intersection(self.neighbours), self.l, "panm sampled")
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
            listed = round.selected.union(self.neighbours.difference(round.candidates))  # and those that are away
            self.neighbours = listed.keep(listed.top(self.similarity.read(listed), limits))
            return
        if self.matches(round.index):
            self.neighbours = self._matched(round, self.neighbours, round.similarity)
        round.selected = round.draw(self.neighbours.intersection(round.candidates), limits, "panm gossip")

    def on_round_end(self, round: Round) -> None:
        """Log the paper's count of models, and the lists' mean size, precision and recall against clusters."""
        formula = panm_models_in_round(round.index + 1, self.l, self.k, self.stage_one, self.tau)
        round.log("models_by_formula", formula)
        round.log("matched", len(self.neighbours) / round.num_nodes)
        if round.clusters is not None:
            precision, recall = neighbour_precision_recall(self.neighbours, round.clusters, round.reachable)
            round.log("matched_precision", precision)
            round.log("matched_recall", recall)

    def _matched(self, round: Round, neighbours: Links, similarity: Tensor) -> Links:
        """The lists after a matching; who sees none of its neighbours is joined by the most similar strangers."""
        seen = ~similarity.isnan()
        compared, similarity = round.candidates.keep(seen), similarity[seen]
        sampled = compared.within(neighbours)
        matched = same_cluster(similarity, compared, sampled, self.matching)
        lost = ~compared.any(sampled)
        joined = torch.where(lost[compared.receivers], compared.top(similarity, self.limits(round)), matched)
        return rematched_neighbours(neighbours, compared.keep(sampled), compared.keep(joined))

    def _similarity(self, round: Round, links: Links) -> Tensor:
        """Of each link, float64 [E]."""
        if self.metric == "loss":
            return loss_similarity(round.loss_of(links))
        nothing = torch.zeros(len(links), dtype=torch.float64)
        updates = round.compare("trained", links, relative_to="start").cosines if self.alpha > 0 else nothing
        accumulated = round.compare("trained", links, relative_to="initial").cosines if self.alpha < 1 else nothing
        return gradient_similarity(updates, accumulated, self.alpha)
