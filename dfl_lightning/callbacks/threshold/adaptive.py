"""AFIND+'s adaptive participation threshold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from dfl_lightning.callbacks.base import Selection, Threshold
from dfl_lightning.functional import adaptive_threshold, literal_threshold
from dfl_lightning.round.ledger import BYTES
from dfl_lightning.round.record import Round
from dfl_lightning.utils.errors import UserError

if TYPE_CHECKING:
    from dfl_lightning.round.federation import Federation


class AdaptiveThreshold(Threshold):
    """A participation threshold that is lower for similar neighbours (AFIND+, arXiv 2407.04460, eq. 10 to 13).

        theta_i = tau * mean over neighbours j of g(e_ij),    g(e) = -exp(1) e ln(e)          (`ratio`)
        theta_i = tau * (1 - sigmoid(h_i)),    h_i = -sum over selected j of e_ij ln(e_ij)    (`literal`, eq. 10 to 13)

    e_ij = (cos_ij + 1) / 2 is the similarity of the proxies of i and j, at least exp(-1) in g, so that g falls from 1
    to 0 with the similarity. `literal` uses the neighbours of the last round, and is 0 in round 0.

    Args:
        tau: the threshold of a client whose neighbours are all dissimilar, 0 or more; 0 accepts all.
        rule: `ratio` or `literal`, as above; the selection's rule must be the same.
        normalise: with `literal`: each client sends h_i to its neighbours, and the sigmoid is of the number of standard
            deviations that h_i is above the mean of its own and theirs (one reading of eq. 11).
    """

    method_name = "+"
    supports_clock = True
    state = ("threshold",)
    logs = ("threshold",)

    def __init__(self, tau: float = 0.5, rule: Literal["ratio", "literal"] = "ratio", normalise: bool = False) -> None:
        if tau < 0:
            raise UserError(f"threshold.tau={tau}; it must be 0 or more")
        if normalise and rule != "literal":
            raise UserError(
                "threshold.normalise=true is for threshold.rule=literal, whose entropies are sums; use "
                "--threshold.rule literal --selection.rule literal, or drop it"
            )
        self.tau, self.rule, self.normalise = tau, rule, normalise
        self.threshold: Tensor  # theta as printed for the next round, float64 [n]

    def start(self, federation: Federation) -> None:
        """Require a selection whose scores have the unit of the threshold, and rounds if clients exchange entropies."""
        selection_rule = federation.require(Selection).threshold_rule
        if selection_rule not in (None, self.rule):
            raise UserError(f"threshold.rule={self.rule} but selection.rule={selection_rule}; they must be the same")
        if self.normalise and federation.is_asynchronous:
            raise UserError(
                "threshold.normalise=true compares entropies that all neighbours send in the same round, and clients "
                "that do not wait for each other send none; drop it, or use --clock null"
            )
        self.threshold = torch.zeros(federation.num_nodes, dtype=torch.float64)

    def on_threshold(self, round: Round) -> None:
        """Compute the threshold from this round's similarities, or as printed from last round's."""
        if self.rule == "literal":
            round.threshold = self.threshold
        else:
            if not round.has("similarity"):
                name = type(round.federation.require(Selection)).__name__
                raise UserError(f"threshold AdaptiveThreshold reads similarities, and the selection {name} writes none")
            round.threshold = adaptive_threshold(round.similarity, round.candidates, self.tau)

    def on_round_end(self, round: Round) -> None:
        """Log the mean threshold; with `literal`, compute the next one from the clients selected now."""
        if round.threshold is not None:
            round.log("threshold", float(round.threshold[round.receivers].mean()))
        if self.rule == "literal" and round.has("similarity") and round.has("selected"):
            of_selected = round.candidates.spread(round.similarity, round.selected)
            neighbours = round.available.between(senders=round.receivers) if self.normalise else None
            if neighbours is not None:
                round.charge_message("entropy", neighbours, BYTES)
            theta = literal_threshold(of_selected, round.selected, self.tau, neighbours)
            # a client that has dropped out keeps its former threshold
            self.threshold = torch.where(round.receivers, theta, self.threshold)
