"""Interface between engines and prediction policies: the policy's methods, and a model's outputs on samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from dfl_lightning.bank.layout import Layout


@dataclass(frozen=True)
class Outputs:
    """Outputs of a model on a client's samples, or of k models on equally many samples each, then stacked.

    Attributes:
        scores: the network's scores, float64 [..., B, C].
        features: inputs of the layers that the rule names, float64 [..., B, *] by layer.
        rows: columns of the owner's rows that the rule names, float64 [..., columns] by row set.
    """

    scores: Tensor
    features: Mapping[str, Tensor]
    rows: Mapping[str, Tensor] = field(default_factory=dict, kw_only=True)


@dataclass(frozen=True)
class LabelledOutputs(Outputs):
    """Outputs on samples whose classes the client knows.

    Attributes:
        labels: int64 [..., B].
    """

    labels: Tensor


class PredictionRule(Protocol):
    """Rule that turns a model's outputs into probabilities of classes."""

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the layers whose inputs the rule reads; `head` is the last linear layer of a forward pass."""

    @property
    def memory(self) -> tuple[str, ...]:
        """Splits of the client's own samples on which the rule needs the model's outputs: `train`, `val`."""

    def rows(self, layout: Layout) -> Mapping[str, tuple[int, int]]:
        """Return the columns of the owner's rows that the rule reads, as (first, end) by row set.

        Args:
            layout: the columns of a row.
        """

    def predict(self, query: Outputs, memory: Mapping[str, LabelledOutputs]) -> Tensor:
        """Return probabilities of classes, [..., B, C].

        Args:
            query: the model's outputs on the samples to classify.
            memory: the same model's outputs on the client's own samples, by split.
        """
