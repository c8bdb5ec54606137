"""Augmentation of whole batches, with draws from the given generator only."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["CropFlip"]


class CropFlip:
    """Random crop after padding with zeros, then a horizontal flip of every other image; the usual of CIFAR.

    Example:
        >>> batch = torch.ones(2, 1, 4, 4)
        >>> CropFlip(padding=0)(batch, torch.Generator().manual_seed(0)).equal(batch)
        True
    """

    def __init__(self, padding: int = 4) -> None:
        self.padding = padding

    def __call__(self, batch: Tensor, generator: torch.Generator) -> Tensor:
        """Augment `batch` [B, C, H, W]; the draws are made where `generator` lives and do not depend on the device."""
        size, channels, height, width = batch.shape
        shifts = torch.randint(0, 2 * self.padding + 1, (2, size, 1), generator=generator, device=generator.device)
        flips = torch.randint(0, 2, (size, 1), generator=generator, device=generator.device, dtype=torch.bool)
        shifts, flips = shifts.to(batch.device), flips.to(batch.device)
        rows = torch.arange(height, device=batch.device) + shifts[0]
        columns = torch.arange(width, device=batch.device) + shifts[1]
        columns = torch.where(flips, columns.flip(1), columns)
        padded = torch.nn.functional.pad(batch, (self.padding,) * 4)
        images = torch.arange(size, device=batch.device).view(-1, 1, 1, 1)
        planes = torch.arange(channels, device=batch.device).view(1, -1, 1, 1)
        return padded[images, planes, rows.view(size, 1, height, 1), columns.view(size, 1, 1, width)]
