"""A temporal convolutional network for windows of time series."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from dfl_lightning.models.network import Network, show
from dfl_lightning.utils.errors import UserError

__all__ = ["TCN"]


class TCN(Network):
    """Causal convolutions whose dilation doubles from block to block; the last time step gives the forecast.

    A block is two causal convolutions with ReLU and a shortcut around them, as in Bai, Kolter and Koltun 2018 (arXiv
    1803.01271, section 3), without weight norm and dropout. Inputs are windows [channels, time], or [time] for a single
    channel.

    Args:
        channels: number of channels of each block; block i, counted from 0, has dilation 2^i.
        kernel_size: number of time steps in a kernel, 2 or more.
        input_shape: shape of one window; by default taken from the data.
        num_classes: number of outputs; by default taken from the data.

    Raises:
        UserError: there is no block, a number is too small, or the inputs are not windows.

    Examples:
        >>> network = TCN(channels=[16, 16], input_shape=(1, 28), num_classes=7)
        >>> import torch
        >>> network(torch.zeros(5, 1, 28)).shape
        torch.Size([5, 7])
    """

    def __init__(
        self,
        channels: Sequence[int] = (32, 32, 32),
        kernel_size: int = 3,
        *,
        input_shape: tuple[int, ...] | None = None,
        num_classes: int | None = None,
    ) -> None:
        super().__init__()
        self.channels, self.kernel_size = [int(number) for number in channels], kernel_size
        if not self.channels or min(self.channels) < 1 or kernel_size < 2:
            raise UserError(
                f"TCN: channels={self.channels}, kernel_size={kernel_size}; give at least one block with 1 channel or "
                "more each, and a kernel_size of 2 or more."
            )
        self.build_if_known(input_shape, num_classes)

    def layers(self, input_shape: tuple[int, ...], num_classes: int) -> tuple[nn.Module, nn.Module]:
        """Build the blocks and the selection of the last time step as features, and a linear layer as head."""
        if len(input_shape) > 2:
            raise UserError(
                f"TCN: needs windows (channels x time, or time), but the data has {show(input_shape)}; choose another "
                "network."
            )
        features: OrderedDict[str, nn.Module] = OrderedDict()
        if len(input_shape) == 1:
            features["channel"] = nn.Unflatten(1, (1, input_shape[0]))
        before = input_shape[0] if len(input_shape) == 2 else 1
        for number, after in enumerate(self.channels):
            features[f"block{number + 1}"] = _Block(before, after, self.kernel_size, 2**number)
            before = after
        features["last"] = _Last()
        return nn.Sequential(features), nn.Linear(before, num_classes)


class _Block(nn.Module):
    """Two causal convolutions with a shortcut around them."""

    def __init__(self, before: int, after: int, kernel_size: int, dilation: int) -> None:
        super().__init__()
        self.past = (kernel_size - 1) * dilation
        self.conv1 = nn.Conv1d(before, after, kernel_size, dilation=dilation)
        self.conv2 = nn.Conv1d(after, after, kernel_size, dilation=dilation)
        self.same = nn.Identity() if before == after else nn.Conv1d(before, after, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, before, T] to [B, after, T]."""
        y = F.relu(self.conv1(F.pad(x, (self.past, 0))))
        y = F.relu(self.conv2(F.pad(y, (self.past, 0))))
        return self.same(x) + y


class _Last(nn.Module):
    """Selection of the last time step."""

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, channels, T] to [B, channels]."""
        return x[:, :, -1]
