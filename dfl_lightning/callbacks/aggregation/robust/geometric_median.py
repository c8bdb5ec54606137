"""The geometric median: the point with the least sum of distances to the models."""

from __future__ import annotations

import math

from torch import Tensor

from dfl_lightning.callbacks.aggregation.robust.distance_weighted import DistanceWeighted, compared
from dfl_lightning.functional import geometric_median_weights
from dfl_lightning.links import Links
from dfl_lightning.round.record import Round
from dfl_lightning.utils.errors import UserError


class GeometricMedian(DistanceWeighted):
    """The new model has the least sum of distances to the models (Pillutla et al. 2022, arXiv 1912.13445).

    It is computed by the paper's smoothed Weiszfeld algorithm, from the mean of the client's own model and those that
    it received. Half of the models can be anything before it moves arbitrarily far.

    Args:
        smoothing: nu, above 0, in units of parameters: models that are nearer than that to the median count as if they
            were that far.
        iterations: steps of the algorithm, 1 or more.
        include_self: whether the receiver's own model takes part.
    """

    method_name = "geometric median"
    against_adversaries = True

    def __init__(self, smoothing: float = 1e-6, iterations: int = 32, include_self: bool = True) -> None:
        if not (smoothing > 0 and math.isfinite(smoothing)):
            raise UserError(f"aggregation.smoothing={smoothing}; it is a distance above 0")
        if iterations < 1:
            raise UserError(f"aggregation.iterations={iterations}; the algorithm takes 1 step or more")
        self.smoothing, self.iterations, self.include_self = smoothing, iterations, include_self

    def weigh(self, round: Round, voters: Links, votes: Tensor) -> Tensor:
        """Compare, then Weiszfeld's steps."""
        return geometric_median_weights(compared(round, voters), votes, self.smoothing, self.iterations)
