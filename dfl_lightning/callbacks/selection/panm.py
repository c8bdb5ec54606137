"""PANM: find the client's own cluster with a few models a round, for an unknown number of clusters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from dfl_lightning.callbacks.base import Selection
from dfl_lightning.functional import (
    drawn_k,
    gradient_similarity,
    loss_similarity,
    neighbour_precision_recall,
    panm_models_in_round,
    rematched_neighbours,
    same_cluster,
    top_k,
)
from dfl_lightning.round.record import Round
from dfl_lightning.utils.errors import UserError

if TYPE_CHECKING:
    from dfl_lightning.round.federation import Federation


class PANM(Selection):
    """Neighbours of the client's own cluster, found in two stages from a few models a round (PANM, arXiv 2203.12285).

    In stage one (confident neighbour initialisation) a client compares `l` random others and its neighbours; the `k`
    most similar of them become its neighbours, and it learns from them. In stage two it learns from `k` random ones of
    its neighbours; every `tau` rounds (heuristic neighbour matching) it compares `l` of them and `l` strangers, and a
    mixture of two Gaussians decides which of these are of its cluster. A neighbour that is out of reach or down is left
    out of the round and stays on the list.

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
        self.neighbours: Tensor | None = None  # the lists N_i, bool [n, n]
        self.similarity: Tensor | None = None  # as it was seen last, float64 [n, n], NaN = never

    def start(self, federation: Federation) -> None:
        """A run that ends before its first matching is worth a note."""
        first = (self.stage_one // self.tau + 1) * self.tau
        rounds = federation.num_rounds
        if rounds is not None and 0 < rounds < first:
            remark = (
                f"PANM matches no neighbours in {rounds} rounds (the first time would be after {first}): "
                f"lower selection.stage_one={self.stage_one} or selection.tau={self.tau}"
            )
            federation.remark(remark)

    def initialises(self, index: int) -> bool:
        """Whether a round is of stage one; rounds are counted from 0."""
        return index < self.stage_one

    def matches(self, index: int) -> bool:
        """Whether neighbours are matched in a round; as algorithm 1, it counts rounds from 1."""
        return index >= self.stage_one and (index + 1) % self.tau == 0

    def on_propose(self, round: Round) -> None:
        """The neighbours in reach, and in rounds that compare others a uniform draw of these."""
        if self.neighbours is None:
            self.neighbours = torch.zeros_like(round.available)
            self.similarity = torch.full(round.available.shape, float("nan"), dtype=torch.float64)
        drawn = torch.zeros_like(round.available)
        if self.initialises(round.index) or self.matches(round.index):
            others = round.available & round.active[None, :]
            if self.drawn_from == "new" or self.matches(round.index):
                others &= ~self.neighbours
            number = torch.where(self.limits(round) > 0, self.l, 0)  # a client that learns from none compares none
            drawn = drawn_k(others, number, lambda i: round.stream("panm candidates", i))
        round.candidates = round.available & (self.neighbours | drawn)

    def on_compare(self, round: Round) -> None:
        """Similarities of those drawn, and of the neighbours: all of them in stage one, `l` in a matching."""
        assert self.neighbours is not None
        assert self.similarity is not None
        if not (self.initialises(round.index) or self.matches(round.index)):
            return
        pairs = round.candidates & round.active[None, :]
        if self.matches(round.index):
            sampled = drawn_k(pairs & self.neighbours, self.l, lambda i: round.stream("panm sampled", i))
            pairs = (pairs & ~self.neighbours) | sampled
        round.similarity = self._similarity(round, pairs)
        self.similarity = torch.where(round.similarity.isnan(), self.similarity, round.similarity)
        round.scores = torch.where(round.candidates, self.similarity, float("nan"))

    def on_select(self, round: Round) -> None:
        """The `k` most similar ones in stage one, `k` random neighbours in stage two."""
        assert self.neighbours is not None
        assert self.similarity is not None
        limits = self.limits(round)
        if self.initialises(round.index):
            assert round.scores is not None
            useless = (
                round.scores == 0 if self.metric == "loss" else torch.zeros_like(round.candidates)
            )  # infinite loss
            round.selected = top_k(round.scores, round.candidates & ~useless, limits)
            away = self.neighbours & ~round.candidates
            self.neighbours = top_k(self.similarity, round.selected | away, limits)
            return
        if self.matches(round.index):
            assert round.similarity is not None
            self.neighbours = self._matched(self.neighbours, round.similarity, limits)
        listed = self.neighbours & round.candidates
        round.selected = drawn_k(listed, limits, lambda i: round.stream("panm gossip", i))

    def on_round_end(self, round: Round) -> None:
        """The paper's count of the round's models; the lists' mean size, and precision and recall against clusters."""
        assert self.neighbours is not None
        formula = panm_models_in_round(round.index + 1, self.l, self.k, self.stage_one, self.tau)
        round.log("models_by_formula", formula)
        round.log("matched", float(self.neighbours.double().sum(1).mean()))
        if round.clusters is not None:
            precision, recall = neighbour_precision_recall(self.neighbours, round.clusters, round.reachable)
            round.log("matched_precision", precision)
            round.log("matched_recall", recall)

    def _matched(self, neighbours: Tensor, similarity: Tensor, limits: Tensor) -> Tensor:
        """The lists after a matching; who sees none of its neighbours is joined by the most similar strangers."""
        seen = ~similarity.isnan()
        sampled, strangers = seen & neighbours, seen & ~neighbours
        matched = same_cluster(similarity, sampled, strangers, self.matching)
        lost = ~sampled.any(1, keepdim=True)
        matched = torch.where(lost, top_k(similarity, strangers, limits), matched)
        return rematched_neighbours(neighbours, sampled, matched)

    def _similarity(self, round: Round, pairs: Tensor) -> Tensor:
        """Of the pairs, float64 [n, n], NaN elsewhere."""
        if self.metric == "loss":
            return loss_similarity(round.evaluate_pairs(pairs))
        known = torch.zeros(pairs.shape, dtype=torch.float64).masked_fill(~pairs, torch.nan)
        updates = round.compare("trained", pairs, relative_to="start").cosines if self.alpha > 0 else known
        accumulated = round.compare("trained", pairs, relative_to="initial").cosines if self.alpha < 1 else known
        return gradient_similarity(updates, accumulated, self.alpha)
