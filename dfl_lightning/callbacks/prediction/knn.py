"""kNN-Per: votes of the client's own training samples, mixed with the network's probabilities."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from dfl_lightning.callbacks.base import Prediction
from dfl_lightning.engines.scoring.prediction_rule import LabelledOutputs, Outputs
from dfl_lightning.functional import best_vote_shares, neighbour_votes
from dfl_lightning.utils.errors import UserError

if TYPE_CHECKING:
    from dfl_lightning.round.federation import Federation

GRID = torch.arange(11, dtype=torch.float64) / 10
"""Weights that `weight: validation` can choose."""


class KNN(Prediction):
    """Probabilities of the network, mixed with votes of the nearest training samples (kNN-Per, arXiv 2111.09360).

        p(y|x) = weight * votes(y|x) + (1 - weight) * softmax(scores)(y)
        votes(y|x) = sum of kernel(d_s) over the nearest samples s of class y / sum over all nearest samples

    d_s is the Euclidean distance of the features of sample s to phi(x), and features phi are the inputs of the
    network's last linear layer, D numbers (Marfoq et al., ICML 2022). The kernel is exp(-d^2 / (D scale)), as in the
    authors' code, or exp(-d / scale), as in the paper. Features are those of the evaluated model, without augmentation.
    A client keeps the features of its own training samples and sends nothing. If it has fewer than `k` samples all of
    them vote; ties go to the samples that come first in its data; without training samples the network decides alone.

    Args:
        k: number of samples that vote.
        weight: weight of the votes, from 0 (the network alone) to 1 (the votes alone); or `validation`: of 0, 0.1, ...,
            1 the one that is right on most of the client's validation samples, among equals the one with the lowest
            loss on them.
        scale: scale of the distances, above 0.
        kernel: `squared` or `euclidean`.
    """

    method_name = "kNN-Per"
    features = ("head",)

    def __init__(
        self,
        k: int = 10,
        weight: float | Literal["validation"] = 0.5,
        scale: float = 1.0,
        kernel: Literal["squared", "euclidean"] = "squared",
    ) -> None:
        if k < 1:
            raise UserError(f"prediction.k={k}; it is a number of samples that vote, 1 or more")
        if isinstance(weight, str):
            if weight != "validation":
                raise UserError(f"prediction.weight={weight}; it is a share from 0 to 1, or validation")
        elif not 0 <= weight <= 1:
            raise UserError(f"prediction.weight={weight}; it is a share from 0 to 1, or validation")
        if not (scale > 0 and math.isfinite(scale)):
            raise UserError(f"prediction.scale={scale}; it must be a number above 0")
        if kernel not in ("squared", "euclidean"):
            raise UserError(f"prediction.kernel={kernel}; it is squared or euclidean")
        self.k, self.weight, self.scale, self.kernel = k, weight, scale, kernel
        self.memory = ("train", "val") if weight == "validation" else ("train",)

    def start(self, federation: Federation) -> None:
        """Require validation data of all clients with test data if the weight is chosen by them."""
        if self.weight != "validation":
            return
        data = federation.data
        lacking = torch.nonzero((data.sizes("val") == 0) & (data.sizes("test") > 0)).flatten()
        if len(lacking):
            raise UserError(
                f"prediction.weight=validation chooses by a client's validation data, and client {int(lacking[0])} has "
                "none; set data.val_fraction, or give a number"
            )

    def predict(self, query: Outputs, memory: Mapping[str, LabelledOutputs]) -> Tensor:
        """Mix the votes with the network's probabilities; return these alone for a client without training samples."""
        network = query.scores.softmax(-1)
        if not memory["train"].labels.shape[-1]:
            return network
        weight: float | Tensor
        if isinstance(self.weight, str):
            held_out = memory["val"]
            votes = self._votes(held_out, memory)
            shares = best_vote_shares(votes, held_out.scores.softmax(-1), held_out.labels, GRID)
            weight = shares[..., None, None]
        else:
            weight = self.weight
        return weight * self._votes(query, memory) + (1 - weight) * network

    def _votes(self, query: Outputs, memory: Mapping[str, LabelledOutputs]) -> Tensor:
        stored, dims = memory["train"], query.scores.dim() - 1
        return neighbour_votes(
            query.features["head"].flatten(dims),
            stored.features["head"].flatten(dims),
            stored.labels,
            query.scores.shape[-1],
            self.k,
            self.scale,
            self.kernel,
        )
