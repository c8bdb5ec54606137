"""ClippedGossip: an average that clips the difference to each neighbour."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from dfl_lightning.callbacks.aggregation.robust.distance_weighted import DistanceWeighted, log_share
from dfl_lightning.functional import clipped_weights, clipping_radii, metropolis_weights
from dfl_lightning.links import Links
from dfl_lightning.round.record import Round
from dfl_lightning.utils.errors import UserError


class ClippedGossip(DistanceWeighted):
    """The average of clipped differences to neighbours (He, Karimireddy and Jaggi 2022, arXiv 2202.01545, eq. 3).

        x_i = x_i + sum_j W_ij clip(x_j - x_i, tau_i),    clip(z, tau) = min(1, tau / |z|) z

    W are Metropolis weights. tau_i is the distance of the farthest neighbour after the `outliers` farthest ones, as in
    the authors' code (with 1); the radius of the paper's theory depends on which clients are adversaries, and clients
    do not know that. Distances are over the shared parameters, between the client's trained model and the received
    models; buffers are averaged with the same weights. Logs `clipped`: the share of the received models that were
    clipped.

    Args:
        outliers: number of its farthest neighbours that a client treats as outliers, 0 or more; 0 clips nothing.
        radius: tau for all clients and rounds, above 0, instead of `outliers`.
    """

    method_name = "ClippedGossip"
    against_adversaries = True
    supports_servers = False
    logs = ("clipped",)

    def __init__(self, outliers: int = 1, radius: float | None = None) -> None:
        if outliers < 0:
            raise UserError(f"aggregation.outliers={outliers}; it is a number of neighbours, 0 or more")
        if radius is not None and not (radius > 0 and math.isfinite(radius)):
            raise UserError(f"aggregation.radius={radius}; it is a distance above 0")
        self.outliers, self.radius = outliers, radius

    def weigh(self, round: Round, voters: Links, votes: Tensor) -> Tensor:
        """Return Metropolis weights, scaled down for models beyond the radius."""
        distances = round.compare("trained", voters).distances
        if self.radius is None:
            radii = clipping_radii(distances, voters, self.outliers)
        else:
            radii = torch.full((round.num_nodes,), self.radius, dtype=torch.float64)
        log_share(round, "clipped", voters, distances > radii[voters.receivers])
        return clipped_weights(metropolis_weights(votes, voters), distances, voters, radii)
