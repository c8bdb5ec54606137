"""Rules for layers whose parameters and buffers are the same for all clients.

Their tensors are expanded views, [k, *shape], of one copy. Linear layers and norms use the rules of other layers: a
batched product with an expanded weight copies nothing, and no client's numbers depend on the others. The rules here
are of layers for which expanded tensors would be copied for each client.
"""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from dfl_lightning.engines.stacked.layers.activation import Activation
from dfl_lightning.engines.stacked.layers.convolution import flat
from dfl_lightning.engines.stacked.layers.passes import Pass, Rule
from dfl_lightning.utils.code.frozen import FrozenNorm


def is_common(layer: nn.Module, name: str, common: frozenset[str]) -> bool:
    """Return True if the layer has parameters or buffers, and all of them are the same for all clients."""
    own = [f"{name}.{leaf}".removeprefix(".") for leaf, _ in (*layer.named_parameters(), *layer.named_buffers())]
    return bool(own) and common.issuperset(own)


def rule_of(layer: nn.Module) -> Rule | None:
    """Return the rule for a layer whose tensors are common; None if it has the rule of any other layer."""
    if isinstance(layer, FrozenNorm):
        return norm
    return RULES.get(type(layer))


def convolution(layer: Any, name: str, now: Pass, x: Activation) -> Activation:
    """Compute one convolution of all clients' images."""
    weight, bias = _first(now, name, "weight"), _first(now, name, "bias")
    images = x.leading()
    out = layer._conv_forward(images.flatten(0, 1), weight, bias)
    return Activation(out.unflatten(0, images.shape[:2]), x.clients)


def embedding(layer: nn.Embedding, name: str, now: Pass, x: Activation) -> Activation:
    """Look up all clients' indices in one table."""
    table = _first(now, name, "weight")
    assert table is not None
    return Activation(F.embedding(x.leading(), table), x.clients)


def norm(layer: nn.BatchNorm2d, name: str, now: Pass, x: Activation) -> Activation:
    """Normalise by running statistics, in training too."""
    mean, var, weight, bias = (flat(now.of(name, leaf)) for leaf in ("running_mean", "running_var", "weight", "bias"))
    out = F.batch_norm(x.side_by_side(), mean, var, weight, bias, False, 0.0, layer.eps)
    return Activation(out, x.clients, channels=True)


def _first(now: Pass, name: str, leaf: str) -> Tensor | None:
    tensor = now.of(name, leaf)
    return None if tensor is None else tensor[0]


RULES: dict[type[nn.Module], Rule] = {
    nn.Conv1d: convolution,
    nn.Conv2d: convolution,
    nn.Conv3d: convolution,
    nn.Embedding: embedding,
}
"""Rules of layers whose tensors are common, by their exact type."""
