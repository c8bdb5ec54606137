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
    """The geometric median of the models (Pillutla, Kakade and Harchaoui 2022, arXiv 1912.13445).

        x_i = argmin over v of  sum_j v_ij |v - x_j|

    The sum is over the selected j and i itself, and v_ij is the number of votes of model j. The paper's smoothed
    Weiszfeld algorithm computes it, starting from the mean of these models. Up to half of the models can be falsified
    before the median moves arbitrarily far.

    Args:
        smoothing: nu, above 0, in units of parameters: models that are nearer to the median than nu count as if they
            were at the distance nu.
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
        """Compare the models, and return the weights that Weiszfeld's algorithm ends with."""
        return geometric_median_weights(compared(round, voters), votes, self.smoothing, self.iterations)
