"""Robust averages of each parameter by itself: the median, and the mean without the outermost values."""

from __future__ import annotations

from functools import partial

from dfl_lightning.callbacks.base import Aggregation
from dfl_lightning.functional import column_medians, trimmed_means, uniform_weights
from dfl_lightning.round.record import Round
from dfl_lightning.utils.errors import UserError


class Median(Aggregation):
    """The median of each parameter (Yin et al. 2018, arXiv 1803.01498, algorithm 1, option I).

        x_i[c] = median of the x_j[c] over the selected j and i itself, for each parameter c

    The median of two models is their mean. A model with several votes counts once. `weights` are equal shares of the
    models, for the records: each parameter may take another model's value.

    Args:
        include_self: whether the receiver's own model takes part.
    """

    method_name = "median"
    against_adversaries = True
    supports_clock = True

    def __init__(self, include_self: bool = True) -> None:
        self.include_self = include_self

    def on_weigh(self, round: Round) -> None:
        """Write equal shares as weights, for the records."""
        round.weights = uniform_weights(round.votes > 0, round.voters)

    def on_mix(self, round: Round) -> None:
        """Write the medians of all rows with a vote as the new models."""
        round.reduce(round.votes, column_medians)


class TrimmedMean(Median):
    """The trimmed mean of each parameter (Yin et al. 2018, arXiv 1803.01498, algorithm 1, option II).

        x_i[c] = mean of the x_j[c] over the selected j and i itself, without the b lowest and the b highest

    Of n models b = int(trim * n) are left out at each end; with few models b is 0, and the mean is plain. A model with
    several votes counts once.

    Args:
        trim: share of the models that is left out at each end, 0 or more and below 0.5.
        include_self: whether the receiver's own model takes part.
    """

    method_name = "trimmed mean"

    def __init__(self, trim: float = 0.1, include_self: bool = True) -> None:
        if not 0 <= trim < 0.5:
            raise UserError(f"aggregation.trim={trim}; it is a share from 0 to less than 0.5")
        super().__init__(include_self)
        self.trim = trim

    def on_mix(self, round: Round) -> None:
        """Write the trimmed means of all rows with a vote as the new models."""
        round.reduce(round.votes, partial(trimmed_means, trim=self.trim))
