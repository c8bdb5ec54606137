"""Averages weighted by the scores of the selection."""

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
    """The average weighted by the scores of the selection, as in FedeRiCo (Sui et al. 2022, arXiv 2210.06597).

        W_ij = v_ij s_ij / sum_k v_ik s_ik

    s_ij is the score of j for receiver i, `own_scores` for i itself, and v_ij the number of votes of model j. With
    `FedeRiCo` the scores are in proportion to softmax(-L). The selection's scores must be weights, 0 or more.
    """

    supports_clock = True

    def start(self, federation: Federation) -> None:
        """Require a selection whose scores are weights."""
        selection = federation.policy(Selection)
        if selection is not None and not selection.scores_are_weights:
            name = type(selection).__name__
            raise UserError(
                f"aggregation ScoreWeighted averages by the selection's scores, and those of {name} are not weights; "
                "use --selection FedeRiCo, or --aggregation Uniform"
            )

    def on_weigh(self, round: Round) -> None:
        """Multiply votes by the scores of the rows' owners, and divide by the sum.

        An unknown score counts as 1. If all scores of a receiver are 0, the average is plain.
        """
        voters, votes = round.voters, round.votes
        owners = round.row_owner[voters.senders]
        scores = round.candidates.look_up(round.scores, voters.receivers, owners)
        if round.has("own_scores"):
            scores = torch.where(owners == voters.receivers, round.own_scores[voters.receivers], scores)
        weighted = votes * scores.nan_to_num(nan=1.0)  # a neighbour with an unknown score counts as an average one
        useless = voters.sum(weighted) == 0
        round.weights = uniform_weights(torch.where(useless[voters.receivers], votes, weighted), voters)
