"""What engines know of a prediction policy, and what it sees of a client's samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from dfl_lightning.bank.layout import Layout


@dataclass(frozen=True)
class Outputs:
    """What a model makes of samples of a client, or of k clients with equally many, stacked along a leading dimension.

    Attributes:
        scores: the network's, float64 [..., B, C].
        features: inputs of the layers that the rule names, float64 [..., B, *].
        rows: columns of the owner's row sets that the rule names, float64 [..., columns].
    """

    scores: Tensor
    features: Mapping[str, Tensor]
    rows: Mapping[str, Tensor] = field(default_factory=dict, kw_only=True)


@dataclass(frozen=True)
class LabelledOutputs(Outputs):
    """The same of samples whose classes the client knows.

    Attributes:
        labels: int64 [..., B].
    """

    labels: Tensor


class PredictionRule(Protocol):
    """How probabilities are made of a model's outputs."""

    @property
    def features(self) -> tuple[str, ...]:
        """Layers whose inputs it wants, by name; `head` is the last linear layer of a forward pass."""

    @property
    def memory(self) -> tuple[str, ...]:
        """Which of the client's own samples it wants: `train`, `val`."""

    def rows(self, layout: Layout) -> Mapping[str, tuple[int, int]]:
        """Columns of the owner's row sets that it wants, first and end, by row set.

        Args:
            layout: of the network's rows.
        """

    def predict(self, query: Outputs, memory: Mapping[str, LabelledOutputs]) -> Tensor:
        """Probabilities of classes, [..., B, C].

        Args:
            query: what is to be classified.
            memory: the same model's outputs on the client's own samples, by split.
        """
