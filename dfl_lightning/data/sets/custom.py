"""A data set from a user's own map-style data set."""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from dfl_lightning.data.datamodule import FederatedData
from dfl_lightning.data.partitions import GivenParts, Partition
from dfl_lightning.data.source import Source
from dfl_lightning.utils.errors import UserError, reason
from dfl_lightning.utils.plain_tensors import unusual

__all__ = ["FromDataset"]

_MOST_GAPS = 1000  # accepted number of class numbers that do not occur, in addition to ten for each that does


class FromDataset(FederatedData):
    """A map-style data set of (tensor, target) pairs, as an object in Python or by its import path in YAML.

    All items are read once. Float tensors are used as they are. uint8 tensors with at least two dimensions are images,
    whose pixels are scaled by 1/255; those with fewer (tokens, columns of a table) keep their numbers, 0 to 255.

    Args:
        dataset: data set with a length and items (tensor, target); all tensors have the same shape and dtype. Targets
            are integers (classes), floating-point numbers or tensors [d] (regression), or bool tensors [L] (labels).
        test_dataset: official test set of the same kind; null means that a quarter of each client's own samples is held
            out, see `test_fraction`.
        parts: for each client the list of its indices into `dataset`, instead of a partition.
        num_classes: number of classes; null means the largest class + 1, or none if targets are floating-point numbers
            or labels.
        num_clients: number of clients; null means the number of parts, or 20 without parts.
        partition: rule that divides the samples; null means `parts`, or IID without parts.
        scale: factor of the tensors; null means 1/255 for uint8 images, otherwise 1.
        **kwargs: all other options of `FederatedData`.

    Examples:
        >>> pairs = torch.utils.data.TensorDataset(torch.rand(8, 3), torch.tensor([0, 1] * 4))
        >>> data = FromDataset(pairs, parts=[[0, 1, 2, 3], [4, 5, 6, 7]])
        >>> data.setup()
        >>> data.describe()
        'TensorDataset, given parts: 3 train / 1 test samples a client'
    """

    def __init__(
        self,
        dataset: Dataset,
        test_dataset: Dataset | None = None,
        parts: list[list[int]] | None = None,
        num_classes: int | None = None,
        num_clients: int | None = None,
        partition: Partition | None = None,
        scale: float | None = None,
        **kwargs: Any,
    ) -> None:
        if scale is not None and not 0 < scale < math.inf:
            raise UserError(f"data.scale={scale}; give a number above 0, or null")
        if parts is not None:
            if kwargs.get("split") is not None:
                raise UserError("data: parts and split both say who has which sample; give one of them")
            if partition is not None:
                raise UserError(
                    f"data: parts and partition {partition.describe()} both say who has which sample; give one of them"
                )
            if num_clients is not None and num_clients != len(parts):
                raise UserError(
                    f"data: parts lists {len(parts)} clients, but num_clients is {num_clients}; leave num_clients out"
                )
            num_clients, partition = len(parts), GivenParts(parts)
        super().__init__(num_clients=20 if num_clients is None else num_clients, partition=partition, **kwargs)
        self.dataset = dataset
        self.test_dataset = test_dataset
        self.num_classes = num_classes
        self.scale = scale

    def load(self) -> Source:
        """Read all items once."""
        name = type(self.dataset).__name__
        if self.test_dataset is self.dataset:
            raise UserError(
                f"data {name}: test_dataset is dataset itself; give other samples, or null to hold out a part of each "
                "client's own"
            )
        images, labels = _read(self.dataset, name)
        test_images, test_labels = None, None
        if self.test_dataset is not None:
            test_images, test_labels = _read(self.test_dataset, f"{name} (test_dataset)")
            alike = test_images.dtype == images.dtype and test_images.shape == images.shape
            if alike and torch.equal(test_images, images) and torch.equal(test_labels, labels):
                raise UserError(
                    f"data {name}: test_dataset holds the same items as dataset; give other samples, or null"
                )
        num_classes = self.num_classes
        numbers = labels.is_floating_point() or labels.dtype == torch.bool
        if num_classes is not None and numbers:
            raise UserError(
                f"data {name}: num_classes is {num_classes}, but targets are {labels.dtype}; give whole numbers as "
                "classes, or leave num_classes out"
            )
        if num_classes is None and numbers:
            num_classes = 0
        elif num_classes is None:
            num_classes = _count_classes(labels if test_labels is None else torch.cat([labels, test_labels]), name)
        scale = self.scale
        if scale is None:
            scale = 1 / 255 if images.dtype == torch.uint8 and images.ndim > 2 else 1.0
        return Source(name, images, labels, num_classes, test_images, test_labels, scale)

    @property
    def guesses_scale(self) -> bool:
        """True if the scale of uint8 tensors is inferred from their shape; after `setup`."""
        return self.scale is None and self.source.images.dtype == torch.uint8


def _count_classes(labels: Tensor, name: str) -> int:
    """Return the largest class + 1; raise if that is much more than the number of different classes."""
    distinct = labels.unique()
    highest = int(distinct[-1])
    if highest >= _MOST_GAPS + 10 * len(distinct):
        raise UserError(
            f"data {name}: the largest label is {highest}, but only {len(distinct)} labels occur; number the classes "
            f"from 0 on, or set num_classes if there are {highest + 1} of them"
        )
    return highest + 1


def _read(dataset: Dataset, name: str) -> tuple[Tensor, Tensor]:
    """Read all items of a data set into two tensors; raise if their shapes or dtypes differ."""
    if not hasattr(type(dataset), "__len__"):
        raise UserError(f"data {name}: it has no length; give a map-style data set, not an iterable one")
    try:
        length = len(dataset)  # type: ignore[arg-type]
    except Exception as error:  # a user's class may raise any error, and Python refuses lengths that are not integers
        raise UserError(
            f"data {name}: its length is not known ({reason(error)}); give a map-style data set, not an iterable one"
        ) from error
    if not length:
        raise UserError(f"data {name}: it is empty; give a data set with items")
    images, labels = torch.empty(0), torch.empty(0)
    for index in range(length):
        image, label = _item(dataset, index, length, name)
        # Targets [2, d] would be taken for numbers and their scales.
        if label.is_floating_point() and label.dim() > 1:
            raise UserError(
                f"data {name}: the target of item {index} is {_kind(label)}; give one number, or one row of numbers "
                "(target.flatten())"
            )
        if not index:
            images, labels = image.new_empty((length, *image.shape)), label.new_empty((length, *label.shape))
        if image.shape != images.shape[1:] or image.dtype != images.dtype:
            raise UserError(
                f"data {name}: item {index} is {image.dtype} {tuple(image.shape)}, item 0 is {images.dtype} "
                f"{tuple(images.shape[1:])}; resize or convert the items to one shape and type"
            )
        if label.shape != labels.shape[1:] or label.dtype != labels.dtype:
            raise UserError(
                f"data {name}: the target of item {index} is {_kind(label)}, that of item 0 is {_kind(labels[0])}; "
                "targets must be of one shape and type"
            )
        # Items are copied at once, as a data set may return the same tensor each time.
        images[index], labels[index] = image, label
    return images, labels


def _kind(target: Tensor) -> str:
    return f"{str(target.dtype).removeprefix('torch.')} {list(target.shape)}"


def _item(dataset: Dataset, index: int, length: int, name: str) -> tuple[Tensor, Tensor]:
    try:
        item = dataset[index]
    except (IndexError, KeyError, StopIteration) as error:
        raise UserError(
            f"data {name}: item {index} of {length} is not there ({type(error).__name__}: {reason(error)}); its length "
            "and its items must agree"
        ) from error
    return _pair(item, index, name)


def _pair(item: object, index: int, name: str) -> tuple[Tensor, Tensor]:
    wanted = "each item must be a pair (tensor, target), the target a class number or floating-point numbers"
    if not isinstance(item, (tuple, list)) or len(item) != 2:
        raise UserError(f"data {name}: item {index} is a {type(item).__name__}, not a pair; {wanted}")
    image, label = item
    if not isinstance(image, Tensor):
        raise UserError(
            f"data {name}: item {index} has a {type(image).__name__} instead of a tensor (a transform such as "
            f"torchvision's ToTensor may be missing); {wanted}"
        )
    if image.dtype != torch.uint8 and not image.is_floating_point():
        raise UserError(f"data {name}: item {index} is {image.dtype}; tensors must be uint8 or floating point")
    if why := unusual(image):
        raise UserError(f"data {name}: item {index} is {why}; tensors must be dense numbers")
    return image.detach().cpu(), _target(label, index, name, wanted)


def _target(label: object, index: int, name: str, wanted: str) -> Tensor:
    """Convert a target to a tensor: a class to int64, a number to float64; a tensor of numbers stays as it is."""
    if isinstance(label, (float, np.floating)):
        return torch.tensor(float(label), dtype=torch.float64)
    if isinstance(label, Tensor) and (label.dim() or label.is_floating_point()) and not label.is_complex():
        if why := unusual(label):
            raise UserError(f"data {name}: the target of item {index} is {why}; tensors must be dense numbers")
        return label.detach().cpu()
    try:
        number = operator.index(label)  # type: ignore[arg-type]
    except TypeError as error:
        raise UserError(
            f"data {name}: item {index} has {label!r} ({type(label).__name__}) instead of a target; {wanted}"
        ) from error
    if not -(2**63) <= number < 2**63:
        raise UserError(f"data {name}: item {index} has a label of {len(str(number))} digits; classes count from 0")
    return torch.tensor(number)
