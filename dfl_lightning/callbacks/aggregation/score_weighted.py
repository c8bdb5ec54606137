"""Averages with the weights by which neighbours were chosen."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from dfl_lightning.callbacks.base import Aggregation, Selection
from dfl_lightning.functional import uniform_weights
from dfl_lightning.round.record import Round
from dfl_lightning.utils.errors import UserError

if TYPE_CHECKING:
    from dfl_lightning.round.federation import Federation


class ScoreWeighted(Aggregation):
    """Models count by the selection's scores, the receiver's own too (FedeRiCo: softmax(-L) renormalised).

    Only for selections whose scores are weights: never negative, with the receiver's own in `own_scores`.
    """

    def start(self, federation: Federation) -> None:
        """Require a selection whose scores are weights."""
        selection = federation.policy(Selection)
        if selection is not None and not selection.scores_are_weights:
            name = type(selection).__name__
            raise UserError(
                f"aggregation ScoreWeighted averages by the selection's scores, and those of {name} are no weights; "
                "use --selection FedeRiCo, or --aggregation Uniform"
            )

    def on_weigh(self, round: Round) -> None:
        """Multiply votes by scores and divide by the sum; a row that stands in for another counts as its own client's.

        Where no score is known, or all are 0, the average is plain.
        """
        voters, votes = round.voters, round.votes
        whose = round.row_owner[voters.senders]
        scores = round.candidates.look_up(round.scores, voters.receivers, whose)
        if round.has("own_scores"):
            scores = torch.where(whose == voters.receivers, round.own_scores[voters.receivers], scores)
        weighted = votes * scores.nan_to_num(nan=1.0)  # unknown: an average neighbour
        useless = voters.sum(weighted) == 0
        round.weights = uniform_weights(torch.where(useless[voters.receivers], votes, weighted), voters)
