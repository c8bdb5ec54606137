"""A data set from a user's own map-style data set."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from dfl_lightning.data.datamodule import FederatedData
from dfl_lightning.data.partitions import GivenParts, Partition
from dfl_lightning.data.parts import taken
from dfl_lightning.data.readers.collated import collated
from dfl_lightning.data.readers.items import as_classes, count_classes, form, read_items
from dfl_lightning.data.source import Source
from dfl_lightning.utils.errors import UserError

__all__ = ["FromDataset"]


class FromDataset(FederatedData):
    """A map-style data set of (inputs, target) pairs, as an object in Python or by its import path in YAML.

    All items are read once, before the run, and a few of them again, since items must not be drawn at random. Float
    tensors are used as they are. uint8 tensors with at least two dimensions are images, whose pixels are scaled by
    1/255; those with fewer (tokens, columns of a table) keep their numbers, 0 to 255. Other whole numbers, such as the
    ids of tokens, and bool masks reach the network as int64 and bool.

    Inputs of several parts are a tuple, which the network gets as positional arguments, or a dict, which it gets as
    keyword arguments. Batches are made part by part.

    Args:
        dataset: data set with a length and items (inputs, target), or dicts with the target as `labels` or `label`; the
            tensors of all items have the same shapes and dtypes. Targets are integers (classes), alone, as tensors [1],
            or one-hot [C]; floating-point numbers or tensors [d] (regression), or bool tensors [L] (labels).
        test_dataset: official test set of the same kind; null means that a quarter of each client's own samples is held
            out, see `test_fraction`.
        parts: for each client the list of its indices into `dataset`, instead of a partition.
        num_classes: number of classes; null means the largest class + 1, or the columns of one-hot targets, or none if
            targets are floating-point numbers or labels. 0: one-hot targets of floating-point numbers are a regression.
        num_clients: number of clients; null means the number of parts, or 20 without parts.
        partition: rule that divides the samples; null means `parts`, or IID without parts.
        scale: factor of the tensors; null means 1/255 for uint8 images, otherwise 1.
        collate: function that makes one batch of all items, of both data sets together, for example a collator of
            transformers, which pads sequences to the longest; null means that items are used as they are.
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
        collate: Callable[[list[Any]], Any] | None = None,
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
        self._remarks: list[str] = []
        self.collate = collate

    def load(self) -> Source:
        """Read all items once."""
        name = type(self.dataset).__name__
        if self.test_dataset is self.dataset:
            raise UserError(
                f"data {name}: test_dataset is dataset itself; give other samples, or null to hold out a part of each "
                "client's own"
            )
        dataset, test_dataset = self.dataset, self.test_dataset
        if self.collate is not None:
            dataset, test_dataset = collated(self.collate, dataset, test_dataset, name)
        images, labels, parts = read_items(dataset, name)
        if parts is not None and self.scale is not None:
            raise UserError(
                f"data.scale={self.scale} is for one tensor of numbers, and inputs are {parts}; leave it out"
            )
        test_images, test_labels = None, None
        if test_dataset is not None:
            test_images, test_labels, test_parts = read_items(test_dataset, f"{name} (test_dataset)")
            if test_parts != parts:
                raise UserError(
                    f"data {name}: inputs are {form(parts)}, and those of test_dataset {form(test_parts)}; make both "
                    "alike (data.collate can pad both to one length)"
                )
            alike = test_images.dtype == images.dtype and test_images.shape == images.shape
            if alike and torch.equal(test_images, images) and torch.equal(test_labels, labels):
                raise UserError(
                    f"data {name}: test_dataset holds the same items as dataset; give other samples, or null"
                )
        tokens = images
        if parts is not None:
            first = parts.each[0]
            tokens = taken(images, 0, first.numbers, first.shape, "float")
        num_classes, labels, test_labels = self._without_columns(tokens, labels, test_labels, name)
        numbers = labels.is_floating_point() or labels.dtype == torch.bool
        if num_classes is not None and numbers:
            raise UserError(
                f"data {name}: num_classes is {num_classes}, but targets are {labels.dtype}; give whole numbers as "
                "classes, or leave num_classes out"
            )
        if num_classes is None and numbers:
            num_classes = 0
        elif num_classes is None:
            num_classes = count_classes(labels if test_labels is None else torch.cat([labels, test_labels]), name)
        scale = self.scale
        if scale is None:
            scale = 1 / 255 if images.dtype == torch.uint8 and images.ndim > 2 else 1.0
        return Source(name, images, labels, num_classes, test_images, test_labels, scale, parts=parts)

    def _without_columns(
        self, images: Tensor, labels: Tensor, test_labels: Tensor | None, name: str
    ) -> tuple[int | None, Tensor, Tensor | None]:
        """Convert targets that are classes in other forms; return the number of classes, if it is known, with them."""
        self._remarks = []
        if self.num_classes == 0 and labels.is_floating_point():
            return None, labels, test_labels
        classes, columns = as_classes(labels, images, name)
        tested, of_tests = (None, columns) if test_labels is None else as_classes(test_labels, images, name)
        if columns != of_tests:
            raise UserError(f"data {name}: targets of dataset and test_dataset are not of one form; make them alike")
        if not columns:
            return self.num_classes, classes, tested
        self._remarks = [f"data.dataset: targets [{columns}] of 0 and a single 1 are taken for {columns} classes"]
        if labels.is_floating_point():
            self._remarks[0] += "; data.num_classes: 0 makes a regression of them"
        return columns if self.num_classes is None else self.num_classes, classes, tested

    def notes(self) -> list[str]:
        """Return remarks for the user before training, in addition what one-hot targets were taken for."""
        return [*super().notes(), *self._remarks]

    @property
    def guesses_scale(self) -> bool:
        """True if the scale of uint8 tensors is inferred from their shape; after `setup`."""
        return self.scale is None and self.source.images.dtype == torch.uint8
