"""A forward pass of several clients, and what each kind of layer has to do in it."""

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
        training: whether layers behave as in training.
        masks: each client's key for the masks of dropout layers, int32 [k, 2]; None in evaluation.
        sizes: how many of the B samples of each client are real; None: all. The others repeat a real one.
        shares: the same for batch norms that leave padding out of their statistics, see `masked_batch_norm`, [k, B];
            None: nothing is padded, or it does not matter.
        unfolded: convolutions that are done by patches and a product; the network enters its own choice.
        dropped: dropout layers that the pass has been through.
        keeps_features: whether `features` are wanted; in training they always are.
        features: inputs of the layers that the objective or the prediction wants, by their names, [k, B, ...] each.
    """

    tensors: Mapping[str, Tensor]
    training: bool
    masks: Tensor | None = None
    sizes: Sequence[int] | None = None
    shares: Tensor | None = None
    unfolded: frozenset[str] = frozenset()
    dropped: int = 0
    keeps_features: bool = False
    features: dict[str, Tensor] = field(default_factory=dict)

    def of(self, layer: str, name: str) -> Tensor | None:
        """A layer's parameter or buffer, [k, *shape]; None if it has none of that name.

        Args:
            layer: its name in the network; empty: the network itself.
            name: of the parameter or buffer.
        """
        return self.tensors.get(f"{layer}.{name}" if layer else name)

    def weight(self, layer: str) -> Tensor:
        """The weight of a layer that has one, [k, *shape].

        Args:
            layer: its name in the network; empty: the network itself.
        """
        return self.tensors[f"{layer}.weight" if layer else "weight"]


Rule = Callable[[Any, str, Pass, Activation], Activation]
"""What a layer does to k clients at once.

Args:
    layer: of the plain network.
    name: of the layer in the network.
    now: the pass, with the clients' parameters.
    x: the layer's input.
"""
