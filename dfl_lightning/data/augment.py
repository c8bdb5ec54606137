"""Augmentation of whole batches, by random numbers for each image and one operation for all images."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

__all__ = ["Augment", "CropFlip"]


class Augment(Protocol):
    """The interface of augmentations, which change training batches before these are scaled.

    Drawing and applying are separate methods, so that each client draws from its own generator on the CPU, while the
    batches of many clients are changed together on any device.
    """

    def draw(self, size: int, generator: torch.Generator) -> Tensor:
        """Draw the random numbers of some images, [size, d].

        Args:
            size: number of images.
            generator: the only source of randomness.
        """

    def apply(self, batch: Tensor, draws: Tensor) -> Tensor:
        """Augment a batch as drawn; images keep their shape.

        Args:
            batch: images [B, C, H, W].
            draws: random numbers from `draw`, [B, d], on the images' device.
        """


class CropFlip:
    """Random crops after padding with zeros, and horizontal flips with probability 1/2, as usual for CIFAR.

    Examples:
        >>> batch, augment = torch.ones(2, 1, 4, 4), CropFlip(padding=0)
        >>> augment.apply(batch, augment.draw(2, torch.Generator().manual_seed(0))).equal(batch)
        True
    """

    def __init__(self, padding: int = 4) -> None:
        self.padding = padding

    def draw(self, size: int, generator: torch.Generator) -> Tensor:
        """Draw the first row and the first column of each crop, and 1 for a flip or 0: int64 [size, 3].

        Args:
            size: number of images.
            generator: the only source of randomness.
        """
        shifts = torch.randint(0, 2 * self.padding + 1, (2, size), generator=generator)
        flips = torch.randint(0, 2, (size,), generator=generator, dtype=torch.bool)
        return torch.stack([*shifts, flips.long()], dim=1)

    def apply(self, batch: Tensor, draws: Tensor) -> Tensor:
        """Crop and flip a batch as drawn.

        Args:
            batch: images [B, C, H, W].
            draws: random numbers from `draw`, int64 [B, 3].
        """
        size, channels, height, width = batch.shape
        top, left, flipped = draws.unsqueeze(2).unbind(1)  # [B, 1] each
        rows = torch.arange(height, device=batch.device) + top
        columns = torch.arange(width, device=batch.device) + left
        columns = torch.where(flipped > 0, columns.flip(1), columns)
        padded = torch.nn.functional.pad(batch, (self.padding,) * 4)
        images = torch.arange(size, device=batch.device).view(-1, 1, 1, 1)
        planes = torch.arange(channels, device=batch.device).view(1, -1, 1, 1)
        return padded[images, planes, rows.view(size, 1, height, 1), columns.view(size, 1, 1, width)]
