"""Forward pass of several clients, and the type of the rules for layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from dfl_lightning.engines.stacked.layers.activation import Activation


@dataclass
class Pass:
    """One forward pass of k clients.

    Args:
        tensors: parameters and buffers by name, [k, *shape] each.
        training: True if layers are in training mode.
        masks: each client's key for the masks of dropout layers, int32 [k, 2]; None in evaluation.
        sizes: number of real samples of each client, whose other samples are padding; None: all B.
        shares: weights of samples for batch norms that ignore padding, [k, B], see `masked_batch_norm`; None: there is
            no padding, or batch norms need not ignore it.
        unfolded: convolutions that are computed by patches and a product; None: those of the network, which sets it.
        dropped: number of dropout layers that the pass has applied.
        keeps_features: True to keep `features` in evaluation; in training they are always kept.
        features: inputs of the layers that the objective or the prediction reads, by their names, [k, B, ...] each.
    """

    tensors: Mapping[str, Tensor]
    training: bool
    masks: Tensor | None = None
    sizes: Sequence[int] | None = None
    shares: Tensor | None = None
    unfolded: frozenset[str] | None = None
    dropped: int = 0
    keeps_features: bool = False
    features: dict[str, Tensor] = field(default_factory=dict)

    def of(self, layer: str, name: str) -> Tensor | None:
        """Return a layer's parameter or buffer, [k, *shape]; None if it has none of that name.

        Args:
            layer: name of the layer in the network; empty: the network itself.
            name: name of the parameter or buffer.
        """
        return self.tensors.get(f"{layer}.{name}" if layer else name)

    def weight(self, layer: str) -> Tensor:
        """Return the weight of a layer that has one, [k, *shape]; the name of the network itself is empty."""
        return self.tensors[f"{layer}.weight" if layer else "weight"]


Rule = Callable[[Any, str, Pass, Activation], Activation]
"""Rule that computes a layer for k clients.

Args:
    layer: the layer of the network for one client, with its options.
    name: name of the layer in the network.
    now: the pass, with the clients' parameters.
    x: the layer's input.
"""
