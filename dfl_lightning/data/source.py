"""A loaded data set, before it is divided among clients."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from dfl_lightning.data.fingerprint import checksum_of
from dfl_lightning.data.parts import Parts
from dfl_lightning.utils.errors import UserError

__all__ = ["Source"]

MOST_CLASSES = 100_000  # a limit, as there are tables of clients by classes, and loops over classes
CHUNK = 4096  # samples that are converted at a time, so that a whole data set is never copied as float
BINS = 10  # number of strata of a regression
_WHOLE = (torch.uint8, torch.int8, torch.int16, torch.int32)


def _adjacent(first: Tensor, second: Tensor) -> bool:
    """Return True if the second tensor follows the first one in memory, as the two parts of one file do."""
    one_storage = first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()
    follows = int(second.storage_offset()) == int(first.storage_offset()) + first.numel()
    return one_storage and follows and first.is_contiguous() and second.is_contiguous()


def _rarest(labels: Tensor, frequencies: Tensor) -> Tensor:
    """Return the rarest label of each sample, int64 [N]; L for a sample without labels.

    Args:
        labels: bool [N, L].
        frequencies: number of samples with each label, [L].
    """
    order = frequencies.argsort(stable=True)
    first = labels[:, order].int().argmax(1)  # position of the first label that the sample has
    return order[first].where(labels.any(1), labels.shape[1])


@dataclass(frozen=True)
class Source:
    """Inputs and targets of a data set, as `FederatedData.load` returns them.

    Attributes:
        name: name of the data set in the banner and in split files.
        images: inputs of the training samples, uint8 or float [N, ...]; usually [N, C, H, W] for images.
        labels: targets of the training samples: classes, int64 [N], of images also [N, 1]; lines of tokens, int64
            [N, T], in which -1 is ignored; floating-point numbers [N] or [N, d] of a regression, stored as [N, d];
            numbers of a forecast and the scale of each, [N, 2, d]; or labels, bool [N, L].
        num_classes: number of classes C; 0 if the targets are not classes.
        test_images: inputs of the official test set, [T, ...] of the same shape and dtype, or None.
        test_labels: targets of the official test set, or None.
        scale: factor of a network's inputs: 1/255 maps uint8 pixels to [0, 1].
        writers: writer of each training sample as an index of `writer_names`, int64 [N]; None if it is not known.
        test_writers: writer of each sample of the official test set, int64 [T], or None.
        writer_names: names of all writers.
        writer_groups: ground-truth group of each writer, a number from 0 on, in the order of `writer_names`; empty if
            there are none.
        strata: stratum of each training sample, int64 [N] from 0 on, which partitions use instead of its class. None
            means: the classes; for a regression ten parts of equally many samples by the first column of the targets;
            for labels the rarest label of a sample, or L if it has none.
        test_strata: strata of the official test set; None likewise, with the bounds of the training samples.
        target_scale: scale of each column of standardised targets, float64 [d]: a target times its scale, plus its
            shift, is in the original unit; None: targets are in the original unit.
        target_shift: shift of each column of standardised targets; see `target_scale`.
        categories: number of categories in each of the first columns of inputs [N, d], which are categorical. Category
            0, for an unknown one, is included.
        words: names of columns, categories, classes or characters, if they are known; for the fingerprint only.
        checksums: fingerprint of the samples as they were read, if inputs have been replaced since; otherwise None.
        parts: the tensors that a row of `images` [N, width] consists of, which the network gets in place of the row;
            None: the network gets `images` as they are.
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
    parts: Parts | None = None
    writer_groups: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Check targets, writers and strata, and that test samples have the shape of training samples."""
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
        if self.writer_groups and len(self.writer_groups) != len(self.writer_names):
            raise UserError(
                f"data {self.name}: {len(self.writer_groups)} writer_groups for {len(self.writer_names)} writers; name "
                "the group of every writer, or of none"
            )
        for attribute in ("labels", "test_labels"):  # integers of any dtype are classes, and other code expects int64
            numbers = getattr(self, attribute)
            if numbers is not None and numbers.dtype in _WHOLE:
                object.__setattr__(self, attribute, numbers := numbers.long())
            if numbers is not None and numbers.dtype == torch.int64 and numbers.shape[1:] == (1,) and self.of_images:
                object.__setattr__(self, attribute, numbers.squeeze(1))
        for classes, images in ((self.labels, self.images), (self.test_labels, self.test_images)):
            if classes is not None and images is not None:
                self._check_targets(classes, len(images))
        for attribute in ("labels", "test_labels"):
            numbers = getattr(self, attribute)
            if numbers is not None and numbers.is_floating_point() and numbers.dim() == 1:
                object.__setattr__(self, attribute, numbers.unsqueeze(1))
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
        # Lines of tokens, in which -1 is ignored.
        are_lines = labels.dim() == 2 and len(labels) == images and not self.of_images
        if labels.shape != (images,) and not are_lines:
            raise UserError(
                f"data {self.name}: labels of shape {tuple(labels.shape)} for {images} samples; give one for each"
            )
        if not len(labels):
            return
        low, high = int(labels.min()), int(labels.max())
        if low < -are_lines or high >= self.num_classes:
            raise UserError(
                f"data {self.name}: labels reach from {low} to {high}, but there are {self.num_classes} "
                f"classes, 0 to {self.num_classes - 1}; correct the labels or num_classes"
            )

    @property
    def of_images(self) -> bool:
        """True if the inputs are images [N, C, H, W] or have more dimensions, and no lines of tokens."""
        return self.images.dim() > 3

    @property
    def has_classes(self) -> bool:
        """True if targets are classes, int64 [N]."""
        return self.num_classes > 0 and self.labels.dim() == 1

    @cached_property
    def strata_of(self) -> tuple[Tensor, Tensor | None]:
        """The strata that partitions use, int64 [N], and those of the official test set; see `strata`."""
        if self.strata is not None:
            return self.strata, self.test_strata
        if self.has_classes:
            return self.labels, self.test_labels
        if self.labels.dtype == torch.bool:
            frequencies = self.labels.sum(0)
            test = None if self.test_labels is None else _rarest(self.test_labels, frequencies)
            return _rarest(self.labels, frequencies), test
        if not self.labels.is_floating_point():
            return self.labels.new_zeros(len(self.labels)), None
        first = self.labels[:, 0].double().contiguous()
        bounds = first.quantile(torch.linspace(0, 1, BINS + 1, dtype=torch.float64)[1:-1]).unique()
        test = None if self.test_labels is None else torch.bucketize(self.test_labels[:, 0].double(), bounds)
        return torch.bucketize(first, bounds), test

    @property
    def in_place_of_classes(self) -> str:
        """A description of the strata for messages; empty if they are the classes."""
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
        """The number of strata: the number of classes if these are the strata."""
        if self.strata is None and self.has_classes:
            return self.num_classes
        return int(max(int(part.max()) for part in self.strata_of if part is not None and len(part))) + 1

    @property
    def num_test(self) -> int:
        """The number of samples of the official test set, 0 if there is none."""
        return 0 if self.test_labels is None else len(self.test_labels)

    def everything(self) -> tuple[Tensor, Tensor]:
        """Concatenate training samples and the official test set: inputs [N + T, ...] and targets [N + T, ...].

        Inputs are not copied if the test samples follow the training samples in memory already.
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
        """Checksums of `inputs`, `targets` and `names`, which differ for another order or version of a data set.

        They are computed from the samples as they were read, before any standardisation, so that they are the same on
        all ranks, engines and devices.
        """
        if self.checksums is not None:
            return self.checksums
        names = (self.name, self.num_classes, self.writer_names, self.categories, self.words)
        names += () if self.parts is None else (self.parts,)  # type: ignore[assignment]
        names += (self.writer_groups,) if self.writer_groups else ()  # type: ignore[assignment]
        return {
            "inputs": checksum_of([self.images, self.test_images], self.scale),
            "targets": checksum_of([self.labels, self.test_labels, self.target_scale, self.target_shift]),
            "names": checksum_of([self.writers, self.test_writers, self.strata, self.test_strata], names),
        }

    def affine(self, normalise: bool) -> tuple[Tensor, Tensor]:
        """Compute `scale` and `shift`, float64, such that sample * scale + shift is a network's input.

        Args:
            normalise: True to subtract the mean and divide by the standard deviation of the training samples, for each
                channel of images [C, H, W], otherwise over all numbers.

        Returns:
            Two tensors, [C, 1, 1] if channels are normalised, else scalars.
        """
        scale, shift = torch.tensor(self.scale, dtype=torch.float64), torch.tensor(0.0, dtype=torch.float64)
        if not normalise:
            return scale, shift
        if self.parts is not None:
            raise UserError(
                f"data {self.name}: data.normalise is for one tensor of numbers, and inputs are {self.parts}; set it "
                "to false, and scale them in the data set"
            )
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
        deviation[~deviation.isfinite()] = torch.nan  # an infinite deviation would make all inputs 0
        scale, shift = 1 / deviation, -mean / deviation
        return (scale.view(-1, 1, 1), shift.view(-1, 1, 1)) if self.images.ndim == 4 else (scale[0], shift[0])

    def stratum_counts(self, indices: np.ndarray) -> np.ndarray:
        """Count the training samples at some indices in each stratum, int64 [S]; see `strata`."""
        return np.bincount(self.strata_of[0].numpy()[indices], minlength=self.num_strata)
