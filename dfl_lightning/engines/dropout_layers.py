"""Dropout layers whose masks are a function of a key and a position, instead of torch's global generator.

A mask is counter-based: entry `i` of the `c`-th dropout layer of a forward pass is a hash of the client's key for this
step, of `c` and of `i`. It is the same on every device, and the same if the client is trained alone or with others. It
is computed on the device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from dfl_lightning.engines.recurrent_layers import draw_between, draws_between


def mask_key(seed: int) -> Tensor:
    """Return the key from which the masks of one client in one step are hashed, int32 [2].

    Args:
        seed: from 0 to 2**63 - 1; see `dfl_lightning.utils.randomness.random_streams.stream_seed`.
    """
    return mask_keys([seed])[0]


def mask_keys(seeds: Sequence[int]) -> Tensor:
    """Return the keys of several clients, int32 [k, 2]; see `mask_key`."""
    keys = [(seed & 0xFFFFFFFF, ((seed >> 31) | 1) & 0xFFFFFFFF) for seed in seeds]  # Odd strides visit all.
    return torch.tensor([(_signed(start), _signed(stride)) for start, stride in keys], dtype=torch.int32).view(-1, 2)


def keep_mask(keys: Tensor, call: int, shape: Sequence[int], p: float) -> Tensor:
    """Compute the mask of a dropout layer: True for entries that it keeps.

    Args:
        keys: keys of k clients, int32 [k, 2]; see `mask_key`.
        call: number of dropout layers that the forward pass has applied before this one.
        shape: shape of one client's mask.
        p: probability of dropping an entry, rounded to a multiple of 2**-24.

    Returns:
        Bool [k, *shape].

    Examples:
        >>> keep_mask(mask_key(1).unsqueeze(0), 0, (8,), 0.5).int()
        tensor([[0, 1, 0, 0, 0, 0, 1, 0]], dtype=torch.int32)
    """
    start, stride = keys.unsqueeze(2).unbind(1)  # [k, 1] each
    positions = torch.arange(math.prod(shape), dtype=torch.int32, device=keys.device)
    # A Weyl sequence of the key's own stride, put through the 32-bit mixer of Wellons' hash-prospector ("lowbias32").
    bits = (positions * stride).add_(start + _signed(_mixed(call + 1)))
    bits = bits.bitwise_xor_(_shifted(bits, 16)).mul_(_signed(0x7FEB352D))
    bits = bits.bitwise_xor_(_shifted(bits, 15)).mul_(_signed(0x846CA68B))
    bits = bits.bitwise_xor_(_shifted(bits, 16)).bitwise_and_(2**24 - 1)
    return (bits >= round(p * 2**24)).view(len(keys), *shape)


def _shifted(bits: Tensor, by: int) -> Tensor:
    """Move int32 bits to the right and fill with zeros; torch's own shift copies the sign bit."""
    return torch.bitwise_right_shift(bits, by).bitwise_and_((1 << (32 - by)) - 1)


def _mixed(word: int) -> int:
    """Mix the bits of one number, 0 <= word < 2**32, as `keep_mask` does for tensors."""
    word = ((word ^ word >> 16) * 0x7FEB352D) & 0xFFFFFFFF
    word = ((word ^ word >> 15) * 0x846CA68B) & 0xFFFFFFFF
    return word ^ word >> 16


def _signed(word: int) -> int:
    """Convert a number from 0 to 2**32 - 1 to the int32 with the same bits."""
    return word - 2**32 if word >= 2**31 else word


class MaskSource:
    """Source of the masks of all dropout layers of one network; the engine sets its key before each step.

    Attributes:
        key: int32 [2]; see `mask_key`. Keys of k clients, int32 [k, 2], are for a pass whose tensors have the samples
            of all of them as their first dimension, k * B.
        call: number of dropout layers that the present forward pass has applied.
        functional: True if a function has drawn that is not called by a dropout layer.
    """

    def __init__(self) -> None:
        self.functional = False
        self.begin(mask_key(0))

    def begin(self, key: Tensor, call: int = 0) -> None:
        """Prepare for a forward pass with this key, or for the rest of one after `call` dropout layers."""
        self.key, self.call = key, call

    def keep(self, shape: Sequence[int], p: float, device: torch.device) -> Tensor:
        """Return the next mask of this shape, bool, True for entries that are kept; see `keep_mask`.

        Args:
            shape: shape of the mask; its first dimension is k * B if there are keys of k clients.
            p: probability of dropping an entry.
            device: where the mask is made.
        """
        call, key = self.next_call(), self.key.to(device)
        if key.dim() == 1:
            return keep_mask(key.unsqueeze(0), call, shape, p)[0]
        if not shape or shape[0] % len(key):
            raise ValueError(f"a mask of shape {list(shape)} cannot be divided among {len(key)} clients")
        return keep_mask(key, call, (shape[0] // len(key), *shape[1:]), p).flatten(0, 1)

    def next_call(self) -> int:
        """Return the number of the calling dropout layer in this forward pass, and count it."""
        self.call += 1
        return self.call - 1


class StreamDropout(nn.Module):
    """Dropout layer that replaces `nn.Dropout`, `nn.Dropout1d`, `2d` and `3d`, with masks from a `MaskSource`.

    Args:
        p: share of the entries (or channels) that are zeroed.
        channelwise: drop whole channels instead of entries.
        source: the network's source of masks.
    """

    def __init__(self, p: float, channelwise: bool, source: MaskSource) -> None:
        super().__init__()
        self.p, self.channelwise, self.source = p, channelwise, source

    def forward(self, x: Tensor) -> Tensor:
        """Zero a share `p` of the entries and divide the others by 1 - p, in training only."""
        if not self.training or self.p == 0:
            return x
        keep = self.source.keep(self.shape_of_mask(x.shape), self.p, x.device)
        return x * (keep.to(x.dtype) / (1 - self.p) if self.p < 1 else 0.0)

    def shape_of_mask(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of the mask of one client's tensor, given the tensor's shape."""
        return (*shape[:2], *[1] * (len(shape) - 2)) if self.channelwise else tuple(shape)


_CHANNELWISE: dict[type[nn.Module], bool] = {
    nn.Dropout: False,
    nn.Dropout1d: True,
    nn.Dropout2d: True,
    nn.Dropout3d: True,
}


def replace_dropout_layers(network: nn.Module, source: MaskSource | None = None) -> MaskSource:
    """Swap the network's dropout layers, in place, for ones that draw from the returned source.

    Recurrent layers with dropout between their layers draw from it, too.

    Args:
        network: the network.
        source: the source; None: a new one.
    """
    source = source or MaskSource()
    for parent in list(network.modules()):
        for name, child in list(parent._modules.items()):  # named_children() would skip a layer that occurs twice.
            if child is not None and type(child) in _CHANNELWISE:
                setattr(parent, name, StreamDropout(float(child.p), _CHANNELWISE[type(child)], source))  # type: ignore[arg-type]
    for layer in list(network.modules()):
        if draws_between(layer):
            draw_between(layer, StreamDropout(float(layer.dropout), False, source))  # type: ignore[arg-type]
    return source
