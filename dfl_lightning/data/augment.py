"""Augmentation of training batches: of all images at once, or by a function of one sample."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from dfl_lightning.utils.errors import UserError, reason, reported_as
from dfl_lightning.utils.randomness.global_generators import name_of

__all__ = ["Augment", "CropFlip", "EachSample", "augmentation"]

_LOCK = threading.Lock()
"""Held while the process's global generators are seeded for a sample, since cohorts may train in several threads."""


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


def augmentation(given: Any, sample: Tensor, scale: float, name: str) -> Augment | None:
    """Return the augmentation that `data.augment` means, after a trial.

    Args:
        given: the option: False or None, True, an `Augment`, or a function of one sample.
        sample: the first sample, as it is stored.
        scale: factor of the samples; see `Source.scale`.
        name: name of the data set, for messages.

    Raises:
        UserError: it does not work on the sample.
    """
    if given is None or given is False:
        return None
    if given is True:
        if sample.dim() != 3:
            raise UserError(
                f"data.augment: true crops and flips images [C, H, W], but {name} has inputs of shape "
                f"{tuple(sample.shape)}; set augment: false, or give a function of a sample"
            )
        return CropFlip()
    if isinstance(given, type):
        raise UserError(f"data.augment is the class {name_of(given)}; give an object, {given.__name__}(…)")
    if callable(getattr(given, "draw", None)) and callable(getattr(given, "apply", None)):
        augment: Augment = given
        return augment
    if not callable(given):
        raise UserError(f"data.augment is {given!r}; it is true, false, or a function of a sample")
    each = EachSample(given, scale)
    each.try_out(sample)
    return each


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


class EachSample:
    """A function of one sample, such as a transform of torchvision, called with global generators of known states.

    Torch's, numpy's and Python's global generators are seeded for each sample from the client's own stream, and get
    their former states back. So the function may draw from them, and the draws of a run do not depend on its engine,
    on threads, or on how often it was resumed. It runs on the CPU.

    Args:
        function: maps a sample to one of the same shape. Samples are floating-point numbers, those of images from 0 to
            1, before `normalise`.
        scale: factor of the stored samples; see `Source.scale`.
    """

    on_cpu = True  # steps on a GPU that call it cannot be recorded

    def __init__(self, function: Callable[[Tensor], Tensor], scale: float = 1.0) -> None:
        self.function, self.scale = function, scale

    def draw(self, size: int, generator: torch.Generator) -> Tensor:
        """Draw a seed above 0 for each sample, int64 [size, 1].

        Args:
            size: number of samples.
            generator: the only source of randomness.
        """
        return torch.randint(1, 2**62, (size, 1), generator=generator)

    def apply(self, batch: Tensor, draws: Tensor) -> Tensor:
        """Call the function for each sample of a batch that has a seed; the others, which fill it up, stay as they are.

        Args:
            batch: samples [B, ...] as they are stored, in floating point.
            draws: seeds from `draw`, int64 [B, 1], 0 for no call.

        Raises:
            UserError: the function fails, or changes the shape of a sample.
        """
        samples, seeds = batch.cpu() * self.scale, draws.flatten().tolist()
        with _LOCK, _own_generators(), torch.no_grad():
            changed = [self._called(x, seed) if seed else x for x, seed in zip(samples, seeds, strict=True)]
        return (torch.stack(changed) / self.scale).to(batch.device)

    def try_out(self, sample: Tensor) -> None:
        """Call the function twice with the same states of the global generators.

        Args:
            sample: a sample, as it is stored.

        Raises:
            UserError: it fails, changes the shape or the type of the sample, or gives two results.
        """
        batch, seeds = sample.float().unsqueeze(0), torch.ones(1, 1, dtype=torch.long)
        first, second = self.apply(batch, seeds), self.apply(batch, seeds)
        if not torch.equal(first.nan_to_num(), second.nan_to_num()):
            raise UserError(
                f"data.augment {name_of(self.function)} gives two results for the same sample and the same draws, so "
                "that a run could not be repeated; let it draw from torch's, numpy's or Python's global generator, and "
                "remember nothing"
            )

    def _called(self, sample: Tensor, seed: int) -> Tensor:
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would also seed all GPUs
        random.seed(seed)
        np.random.seed(seed % 2**32)
        kind = f"{str(sample.dtype).removeprefix('torch.')} {list(sample.shape)}"
        who = f"data.augment {name_of(self.function)}"
        with reported_as(lambda error: UserError(f"{who} fails on a sample {kind} ({reason(error)})")):
            result: object = self.function(sample.clone())
        if not isinstance(result, Tensor) or result.shape != sample.shape:
            got = list(result.shape) if isinstance(result, Tensor) else type(result).__name__
            raise UserError(f"{who} makes {got} of a sample {kind}; it must return a tensor of the same shape")
        return result.detach().to(sample.dtype)


@contextmanager
def _own_generators() -> Iterator[None]:
    """Give torch's, Python's and numpy's global generators their former states at the end of the block."""
    of_torch, of_python, of_numpy = torch.get_rng_state(), random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        torch.set_rng_state(of_torch)
        random.setstate(of_python)
        np.random.set_state(of_numpy)
