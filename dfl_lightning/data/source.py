"""A data set as it was found, before it is divided."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from dfl_lightning.data.fingerprint import checksum_of
from dfl_lightning.utils.errors import UserError

__all__ = ["Source"]

MOST_CLASSES = 100_000  # there are tables of clients by classes, and steps for each class
CHUNK = 4096  # samples converted at a time, so that no float copy of a whole data set is ever made
BINS = 10  # strata of a regression
_WHOLE = (torch.uint8, torch.int8, torch.int16, torch.int32)


def _adjacent(first: Tensor, second: Tensor) -> bool:
    """Whether one tensor begins in memory where the other ends, as the two parts of one file do."""
    one_storage = first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()
    follows = int(second.storage_offset()) == int(first.storage_offset()) + first.numel()
    return one_storage and follows and first.is_contiguous() and second.is_contiguous()


def _rarest(labels: Tensor, often: Tensor) -> Tensor:
    """Of the labels that each sample has, bool [N, L], the one that occurs least often, [L], or L: int64 [N]."""
    order = often.argsort(stable=True)
    found = labels[:, order].int().argmax(1)  # the first one that holds
    return order[found].where(labels.any(1), labels.shape[1])


@dataclass(frozen=True)
class Source:
    """Samples and labels of a data set; what `FederatedData.load` returns.

    Attributes:
        name: how the data set is called in the banner and in split files.
        images: inputs of the training samples, uint8 or float [N, ...]; of images usually [N, C, H, W].
        labels: their targets: classes, int64 [N], lines of tokens, int64 [N, T], of which -1 is ignored, or
            floating-point numbers [N] or [N, d] of a regression, kept as [N, d], numbers and the scale of each,
            [N, 2, d], of a forecast, or which of L labels hold, bool [N, L].
        num_classes: number of classes C; 0 where the targets are no classes.
        test_images: those of the official test set, [T, ...] of the same shape and type, or None.
        test_labels: their targets, or None.
        scale: what a sample is multiplied with to be a network's input: 1/255 brings uint8 pixels to [0, 1].
        writers: who wrote each training sample, int64 [N], as a position in `writer_names`, where the data set knows;
            else None.
        test_writers: the same for the official test set, int64 [T], or None.
        writer_names: names of all writers.
        strata: what partitions by class divide by, int64 [N] from 0 on; None means the classes, of a regression ten
            parts of equally many samples by the first column of the targets, and of labels the rarest one that a sample
            has, or L where it has none.
        test_strata: the same for the official test set; None likewise, with the bounds of the training samples.
        target_scale: of each column of standardised targets, float64 [d]: a target times its scale, plus its shift, is
            in the original unit; None: they are in it.
        target_shift: see `target_scale`.
        categories: of the first columns of inputs [N, d], which hold categories, how many there are, 0 included, which
            stands for an unknown one.
        words: names of columns, categories, classes or characters, where the data set knows them; they count for the
            fingerprint only.
        checksums: the fingerprint of the samples as they were read, where inputs have been replaced since; None:
            none have.
    """

    name: str
    images: Tensor
    labels: Tensor
    num_classes: int
    test_images: Tensor | None = None
    test_labels: Tensor | None = None
    scale: float = 1.0
    writers: Tensor | None = None
    test_writers: Tensor | None = None
    writer_names: tuple[str, ...] = ()
    strata: Tensor | None = None
    test_strata: Tensor | None = None
    target_scale: Tensor | None = None
    target_shift: Tensor | None = None
    categories: tuple[int, ...] = ()
    words: tuple[str, ...] = ()
    checksums: dict[str, int] | None = None

    def __post_init__(self) -> None:
        """Refuse labels that are no classes, writers without a name, and test samples unlike the training samples."""
        if self.num_classes > MOST_CLASSES:
            raise UserError(
                f"data {self.name}: {self.num_classes} classes; {MOST_CLASSES} are the most, so number them from 0 on"
            )
        if (self.test_images is None) != (self.test_labels is None):
            raise UserError(f"data {self.name}: test_images and test_labels go together; give both or neither")
        if self.test_images is not None and (
            self.test_images.shape[1:] != self.images.shape[1:] or self.test_images.dtype != self.images.dtype
        ):
            raise UserError(
                f"data {self.name}: training samples are {self.images.dtype} {tuple(self.images.shape[1:])}, test "
                f"samples {self.test_images.dtype} {tuple(self.test_images.shape[1:])}; make both alike"
            )
        for writers, number in ((self.writers, len(self.labels)), (self.test_writers, self.num_test)):
            if writers is not None and len(writers) != number:
                raise UserError(
                    f"data {self.name}: {len(writers)} writers for {number} samples; name the natural client of each"
                )
            if writers is not None and number:
                low, high = int(writers.min()), int(writers.max())
                if low < 0 or high >= len(self.writer_names):
                    raise UserError(
                        f"data {self.name}: writers reach from {low} to {high}, but writer_names has "
                        f"{len(self.writer_names)}; name every writer"
                    )
        for which in ("labels", "test_labels"):  # whole numbers of any type are classes; the rest counts on int64
            if (numbers := getattr(self, which)) is not None and numbers.dtype in _WHOLE:
                object.__setattr__(self, which, numbers.long())
        for classes, images in ((self.labels, self.images), (self.test_labels, self.test_images)):
            if classes is not None and images is not None:
                self._check_targets(classes, len(images))
        for which in ("labels", "test_labels"):
            if (numbers := getattr(self, which)) is not None and numbers.is_floating_point() and numbers.dim() == 1:
                object.__setattr__(self, which, numbers.unsqueeze(1))
        self._check_strata()

    def _check_targets(self, targets: Tensor, images: int) -> None:
        if targets.dtype == torch.bool and not self.num_classes:
            if targets.dim() != 2 or len(targets) != images or not targets.shape[1]:
                raise UserError(
                    f"data {self.name}: labels bool {list(targets.shape)} for {images} inputs; give a row for each, as "
                    "bool [N, L]"
                )
            return
        if not targets.is_floating_point() or self.num_classes:
            self._check_labels(targets, images)
            return
        with_scales = targets.dim() == 3 and targets.shape[1] == 2
        if (
            not (targets.dim() in (1, 2) or with_scales)
            or len(targets) != images
            or not targets[:1].numel() == targets[0].numel() > 0
        ):
            raise UserError(
                f"data {self.name}: targets of shape {tuple(targets.shape)} for {images} inputs; give one number, or a "
                "row of numbers, for each"
            )
        broken = torch.nonzero(~targets.reshape(images, -1).isfinite().all(1)).flatten()
        if len(broken):
            raise UserError(
                f"data {self.name}: the target of item {int(broken[0])} (counted from 0) is NaN or infinity; repair or "
                "remove it"
            )

    def _check_strata(self) -> None:
        for strata, samples in ((self.strata, len(self.labels)), (self.test_strata, self.num_test)):
            if strata is None:
                continue
            if strata.dtype != torch.int64 or strata.shape != (samples,) or (samples and int(strata.min()) < 0):
                raise UserError(
                    f"data {self.name}: strata are {strata.dtype} {tuple(strata.shape)} for {samples} samples; give a "
                    "number from 0 on for each, as torch.int64"
                )

    def _check_labels(self, labels: Tensor, images: int) -> None:
        if labels.dtype != torch.int64:
            raise UserError(f"data {self.name}: labels are {labels.dtype}; give the numbers of classes as torch.int64")
        lines = labels.dim() == 2 and len(labels) == images  # of tokens, where -1 is ignored
        if labels.shape != (images,) and not lines:
            raise UserError(
                f"data {self.name}: labels of shape {tuple(labels.shape)} for {images} samples; give one for each"
            )
        if not len(labels):
            return
        low, high = int(labels.min()), int(labels.max())
        if low < -lines or high >= self.num_classes:
            raise UserError(
                f"data {self.name}: labels reach from {low} to {high}, but there are {self.num_classes} "
                f"classes, 0 to {self.num_classes - 1}; correct the labels or num_classes"
            )

    @property
    def has_classes(self) -> bool:
        """Whether targets are classes, int64 [N]."""
        return self.num_classes > 0 and self.labels.dim() == 1

    @cached_property
    def strata_of(self) -> tuple[Tensor, Tensor | None]:
        """What partitions divide by, int64 [N], and the same for the official test set; see `strata`."""
        if self.strata is not None:
            return self.strata, self.test_strata
        if self.has_classes:
            return self.labels, self.test_labels
        if self.labels.dtype == torch.bool:
            often = self.labels.sum(0)
            test = None if self.test_labels is None else _rarest(self.test_labels, often)
            return _rarest(self.labels, often), test
        if not self.labels.is_floating_point():
            return self.labels.new_zeros(len(self.labels)), None
        first = self.labels[:, 0].double().contiguous()
        bounds = first.quantile(torch.linspace(0, 1, BINS + 1, dtype=torch.float64)[1:-1]).unique()
        test = None if self.test_labels is None else torch.bucketize(self.test_labels[:, 0].double(), bounds)
        return torch.bucketize(first, bounds), test

    @property
    def in_place_of_classes(self) -> str:
        """What partitions divide by, in words; empty where it is classes."""
        if self.strata is not None:
            return "the strata that the data set gives"
        if self.has_classes:
            return ""
        if self.labels.dtype == torch.bool:
            return "the rarest label of each sample"
        if self.labels.is_floating_point():
            return f"{self.num_strata} ranges of the target with equally many samples"
        return "a single one for all samples"

    @property
    def num_strata(self) -> int:
        """How many strata there are: the number of classes where these are the strata."""
        if self.strata is None and self.has_classes:
            return self.num_classes
        return int(max(int(part.max()) for part in self.strata_of if part is not None and len(part))) + 1

    @property
    def num_test(self) -> int:
        """Samples of the official test set, 0 where there is none."""
        return 0 if self.test_labels is None else len(self.test_labels)

    def everything(self) -> tuple[Tensor, Tensor]:
        """Return samples and labels with the official test set after the training samples, [N + T, ...] and [N + T].

        Nothing is copied where the test samples follow the training samples in memory already.
        """
        if self.test_images is None or self.test_labels is None:
            return self.images, self.labels
        if _adjacent(self.images, self.test_images):
            total = len(self.images) + len(self.test_images)
            images = self.images.as_strided((total, *self.images.shape[1:]), self.images.stride())
            return images, torch.cat([self.labels, self.test_labels])
        return torch.cat([self.images, self.test_images]), torch.cat([self.labels, self.test_labels])

    @cached_property
    def fingerprint(self) -> dict[str, int]:
        """Checksums of `inputs`, `targets` and `names`: they tell another order or version of a data set apart.

        They are of what was read, before anything is computed from training samples, so every rank, engine and device
        has the same.
        """
        if self.checksums is not None:
            return self.checksums
        names = (self.name, self.num_classes, self.writer_names, self.categories, self.words)
        return {
            "inputs": checksum_of([self.images, self.test_images], self.scale),
            "targets": checksum_of([self.labels, self.test_labels, self.target_scale, self.target_shift]),
            "names": checksum_of([self.writers, self.test_writers, self.strata, self.test_strata], names),
        }

    def affine(self, normalise: bool) -> tuple[Tensor, Tensor]:
        """Return `scale` and `shift` that make a sample a network's input, float64.

        Args:
            normalise: subtract the mean and divide by the standard deviation of the training samples, for each channel
                of images [C, H, W], otherwise over everything.

        Returns:
            Two tensors, [C, 1, 1] where there are channels to normalise, else scalars.
        """
        scale, shift = torch.tensor(self.scale, dtype=torch.float64), torch.tensor(0.0, dtype=torch.float64)
        if not normalise:
            return scale, shift
        channels = self.images.shape[1] if self.images.ndim == 4 else 1
        total, squares = torch.zeros(channels, dtype=torch.float64), torch.zeros(channels, dtype=torch.float64)
        for chunk in self.images.split(CHUNK):
            pixels = chunk.reshape(len(chunk), channels, -1).double()
            total += pixels.sum((0, 2))
            squares += pixels.square().sum((0, 2))
        count = self.images.numel() / channels
        mean = total / count
        deviation = (squares / count - mean.square()).clamp_min(0).sqrt()
        deviation[deviation == 0] = 1
        deviation[~deviation.isfinite()] = torch.nan  # also infinity, by which everything would become 0
        scale, shift = 1 / deviation, -mean / deviation
        return (scale.view(-1, 1, 1), shift.view(-1, 1, 1)) if self.images.ndim == 4 else (scale[0], shift[0])

    def stratum_counts(self, indices: np.ndarray) -> np.ndarray:
        """Count how many of these training samples belong to each stratum, int64 [S]; classes are, or see `strata`."""
        return np.bincount(self.strata_of[0].numpy()[indices], minlength=self.num_strata)
