"""Residual networks."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Literal

from torch import Tensor, nn

from dfl_lightning.models.network import Network, check_images
from dfl_lightning.utils.errors import UserError

_STAGES = ((64, 1), (128, 2), (256, 2), (512, 2))  # channels of a stage, and the stride of its first block


class _Block(nn.Module):
    """Two 3x3 convolutions with a shortcut around them ("Deep Residual Learning for Image Recognition", section 3).

    Args:
        before: channels of the input.
        channels: channels of the output.
        stride: stride of the first convolution; if the shape changes, the shortcut is a 1x1 convolution.
        norm: function that builds the normalisation layer for a number of channels.
    """

    def __init__(self, before: int, channels: int, stride: int, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, channels, 3, stride, padding=1, bias=False)
        self.norm1 = norm(channels)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = norm(channels)
        self.shortcut = nn.Sequential()
        if (before, stride) != (channels, 1):
            self.shortcut.add_module("conv", nn.Conv2d(before, channels, 1, stride, bias=False))
            self.shortcut.add_module("norm", norm(channels))
        self.relu2 = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """Map [batch, before, height, width] to [batch, channels, height / stride, width / stride]."""
        residual = self.norm2(self.conv2(self.relu1(self.norm1(self.conv1(x)))))
        return self.relu2(residual + self.shortcut(x))


class ResNet18(Network):
    """ResNet-18 for small images: 3x3 stem without pooling, GroupNorm or BatchNorm (AFIND+ on CIFAR-100).

    The paper (section 5.1, appendix C.3) names "ResNet-18" without details. Layers are those of "Deep Residual
    Learning for Image Recognition" (table 1) except for the stem, which keeps the size, as usual for 32x32 pixels.
    GroupNorm with 32 groups is from the public code of Dis-PFL, a method that AFIND+ compares with on the same data.
    GroupNorm needs no running statistics, while those of BatchNorm differ between clients with different labels ("The
    Non-IID Data Quagmire of Decentralized Machine Learning", 2020). Initial parameters are drawn as in torch's layers.
    The network has 11,173,962 parameters for 3x32x32 and 10 classes, with either normalisation.

    Args:
        norm: "group" (GroupNorm) or "batch" (BatchNorm).
        groups: number of groups of each GroupNorm, a divisor of 64; null means 32. Only for GroupNorm.
        input_shape: shape of one image, [channels, height, width]; by default taken from the data.
        num_classes: by default taken from the data.

    Raises:
        UserError: the normalisation is unknown, the groups do not divide 64 or are given for BatchNorm, or the inputs
            are not images of at least 2x2.

    Examples:
        >>> sum(p.numel() for p in ResNet18(input_shape=(3, 32, 32), num_classes=100).parameters())
        11220132
    """

    smallest = 2  # a group of one channel of a single pixel would be one number, which has no variance

    def __init__(
        self,
        norm: Literal["group", "batch"] = "group",
        groups: int | None = None,
        *,
        input_shape: tuple[int, ...] | None = None,
        num_classes: int | None = None,
    ) -> None:
        super().__init__()
        if norm not in ("group", "batch"):
            raise UserError(f"ResNet18: norm must be group or batch, not {norm}.")
        if norm == "batch" and groups is not None:
            raise UserError(f"ResNet18: groups={groups} is for norm=group; BatchNorm has no groups, leave it out.")
        narrowest = _STAGES[0][0]
        groups = 32 if groups is None else groups
        if groups < 1 or narrowest % groups:
            raise UserError(f"ResNet18: groups must divide {narrowest}, the fewest channels, but is {groups}.")
        self.norm, self.groups = norm, groups
        self.build_if_known(input_shape, num_classes)

    def normalisation(self, channels: int) -> nn.Module:
        """Build a layer of the chosen normalisation for a number of channels."""
        return nn.GroupNorm(self.groups, channels) if self.norm == "group" else nn.BatchNorm2d(channels)

    def layers(self, input_shape: tuple[int, ...], num_classes: int) -> tuple[nn.Module, nn.Module]:
        """Build the stem, four stages of two blocks and the mean over all pixels as features; a classifier as head."""
        check_images(self, input_shape, self.smallest)
        before = _STAGES[0][0]
        features: OrderedDict[str, nn.Module] = OrderedDict(
            conv1=nn.Conv2d(input_shape[0], before, 3, padding=1, bias=False),
            norm1=self.normalisation(before),
            relu1=nn.ReLU(),
        )
        for stage, (channels, stride) in enumerate(_STAGES, start=1):
            features[f"layer{stage}"] = nn.Sequential(
                _Block(before, channels, stride, self.normalisation),
                _Block(channels, channels, 1, self.normalisation),
            )
            before = channels
        features["pool"] = nn.AdaptiveAvgPool2d(1)
        features["flatten"] = nn.Flatten()
        return nn.Sequential(features), nn.Linear(before, num_classes)
