"""Dropout layers whose masks come from a named stream instead of torch's global generator."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dfl_lightning.errors import UserError


class MaskSource:
    """The generator that all dropout layers of one network draw from; the engine sets it before each step."""

    def __init__(self) -> None:
        self.generator = torch.Generator()  # until the engine sets one: never torch's global generator


class StreamDropout(nn.Module):
    """`nn.Dropout`, `nn.Dropout1d`, `2d` and `3d` with masks from a `MaskSource`.

    Args:
        p: share of the entries (or channels) that are zeroed.
        channelwise: whether a mask covers whole channels.
        source: where masks come from.
    """

    def __init__(self, p: float, channelwise: bool, source: MaskSource) -> None:
        super().__init__()
        self.p, self.channelwise, self.source = p, channelwise, source

    def forward(self, x: Tensor) -> Tensor:
        """Zero a share `p` of the entries and scale the others, in training only."""
        if not self.training or self.p == 0:
            return x
        shape = x.shape[:2] + (1,) * (x.dim() - 2) if self.channelwise else x.shape
        keep = torch.rand(shape, generator=self.source.generator, dtype=torch.float32) >= self.p
        return x * (keep.to(x.device, x.dtype) / (1 - self.p) if self.p < 1 else 0.0)


_CHANNELWISE: dict[type[nn.Module], bool] = {
    nn.Dropout: False,
    nn.Dropout1d: True,
    nn.Dropout2d: True,
    nn.Dropout3d: True,
}


def replace_dropout_layers(network: nn.Module) -> MaskSource:
    """Swap the network's dropout layers, in place, for ones that draw from the returned source."""
    source = MaskSource()
    for parent in list(network.modules()):
        for name, child in list(parent._modules.items()):  # named_children() would skip a layer's second place
            if child is not None and type(child) in _CHANNELWISE:
                setattr(parent, name, StreamDropout(float(child.p), _CHANNELWISE[type(child)], source))  # type: ignore[arg-type]
    return source


def check_no_global_draws(network: nn.Module, example: Tensor) -> None:
    """Refuse a network that draws from torch's global generator in training.

    Args:
        network: after `replace_dropout_layers`.
        example: two inputs, [2, ...].

    Raises:
        UserError: such a network's runs could not be repeated nor resumed.
    """
    was_training = {module: module.training for module in network.modules()}
    state = torch.get_rng_state()
    network.train()
    buffers = {name: buffer.clone() for name, buffer in network.named_buffers()}
    try:
        with torch.no_grad():
            network(example)
        drew = not torch.equal(state, torch.get_rng_state())
    finally:
        torch.set_rng_state(state)
        for module, mode in was_training.items():
            module.training = mode
        for name, buffer in network.named_buffers():
            buffer.copy_(buffers[name])
    if drew:
        raise UserError(
            f"model.network {type(network).__name__} draws random numbers from torch's global generator "
            "(functional dropout?), so its runs could not be repeated; use nn.Dropout, nn.Dropout1d, 2d or 3d layers"
        )
