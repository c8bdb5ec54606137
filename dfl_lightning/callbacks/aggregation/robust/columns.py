"""Aggregations that few adversaries cannot move far: column by column, without the outermost entries."""

from __future__ import annotations

from functools import partial

from dfl_lightning.callbacks.base import Aggregation
from dfl_lightning.functional import column_medians, trimmed_means, uniform_weights
from dfl_lightning.round.record import Round
from dfl_lightning.utils.errors import UserError


class Median(Aggregation):
    """Each column is the median of what was received in it, oneself included (Yin et al. 2018, arXiv 1803.01498).

    Of two rows it is the mean, of a single one that row. A row that stands in for several counts once. `weights` are
    equal shares of the rows: which of them a column takes is another one each time.

    Args:
        include_self: whether the receiver's own model takes part.
    """

    method_name = "median"
    against_adversaries = True

    def __init__(self, include_self: bool = True) -> None:
        self.include_self = include_self

    def on_weigh(self, round: Round) -> None:
        """Write equal shares, for the records."""
        round.weights = uniform_weights(round.votes > 0, round.voters)

    def on_mix(self, round: Round) -> None:
        """Mix to the medians of all rows that have a vote."""
        round.reduce(round.votes, column_medians)


class TrimmedMean(Median):
    """Each column is a mean without its highest and lowest entries (Yin et al. 2018, arXiv 1803.01498).

    Of n rows int(trim * n) are left out at each end: of a few rows none, so that the mean is plain. A row that stands
    in for several counts once.

    Args:
        trim: share that is left out at each end, 0 or more and below 0.5.
        include_self: whether the receiver's own model takes part.
    """

    method_name = "trimmed mean"

    def __init__(self, trim: float = 0.1, include_self: bool = True) -> None:
        if not 0 <= trim < 0.5:
            raise UserError(f"aggregation.trim={trim}; it is a share from 0 to less than 0.5")
        super().__init__(include_self)
        self.trim = trim

    def on_mix(self, round: Round) -> None:
        """Mix to the trimmed means of all rows that have a vote."""
        round.reduce(round.votes, partial(trimmed_means, trim=self.trim))
