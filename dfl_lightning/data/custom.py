"""Anybody's own map-style data set."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from dfl_lightning.data.datamodule import FederatedData
from dfl_lightning.data.partitions import GivenParts, Partition
from dfl_lightning.data.source import Source
from dfl_lightning.errors import UserError

__all__ = ["FromDataset"]


class FromDataset(FederatedData):
    """A map-style data set of (tensor, class) pairs, from Python as an object or from YAML by its import path.

    All items are read once. Float tensors are used as they are, uint8 tensors are scaled by 1/255.

    Args:
        dataset: has a length and gives (tensor, class) pairs; all tensors of one shape and type.
        test_dataset: official test set of the same kind; null means that a quarter of each client's own images is held
            out, see `test_fraction`.
        parts: for each client the list of its indices into `dataset`, in place of a partition.
        num_classes: number of classes; null means the largest class + 1.
        num_clients: number of clients; null means the number of parts, or 20 without parts.
        partition: how the images are divided; null means `parts`, or IID without parts.
        **kwargs: everything else of `FederatedData`.

    Example:
        >>> pairs = torch.utils.data.TensorDataset(torch.rand(8, 3), torch.tensor([0, 1] * 4))
        >>> data = FromDataset(pairs, parts=[[0, 1, 2, 3], [4, 5, 6, 7]])
        >>> data.setup()
        >>> data.describe()
        'TensorDataset, given parts: 3 train / 1 test images a client'
    """

    def __init__(
        self,
        dataset: Dataset,
        test_dataset: Dataset | None = None,
        parts: list[list[int]] | None = None,
        num_classes: int | None = None,
        num_clients: int | None = None,
        partition: Partition | None = None,
        **kwargs: Any,
    ) -> None:
        if parts is not None:
            if partition is not None:
                raise UserError(
                    f"data: parts and partition {partition.describe()} both say who has which image; give one of them"
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

    def load(self) -> Source:
        """Read every item once."""
        name = type(self.dataset).__name__
        images, labels = _read(self.dataset, name)
        test_images, test_labels = None, None
        highest = int(labels.max())
        if self.test_dataset is not None:
            test_images, test_labels = _read(self.test_dataset, f"{name} (test_dataset)")
            highest = max(highest, int(test_labels.max()))
        num_classes = highest + 1 if self.num_classes is None else self.num_classes
        scale = 1 / 255 if images.dtype == torch.uint8 else 1.0
        return Source(name, images, labels, num_classes, test_images, test_labels, scale)


def _read(dataset: Dataset, name: str) -> tuple[Tensor, Tensor]:
    try:
        length = len(dataset)  # type: ignore[arg-type]
    except TypeError as error:
        raise UserError(f"data {name}: it has no length; give a map-style data set, not an iterable one") from error
    if not length:
        raise UserError(f"data {name}: it is empty; give a data set with items")
    images: list[Tensor] = []
    labels: list[int] = []
    for index in range(length):
        image, label = _pair(dataset[index], index, name)
        if images and (image.shape != images[0].shape or image.dtype != images[0].dtype):
            raise UserError(
                f"data {name}: item {index} is {image.dtype} {tuple(image.shape)}, item 0 is {images[0].dtype} "
                f"{tuple(images[0].shape)}; resize or convert the items to one shape and type"
            )
        images.append(image)
        labels.append(label)
    return torch.stack(images), torch.tensor(labels)


def _pair(item: object, index: int, name: str) -> tuple[Tensor, int]:
    wanted = "each item must be a pair (tensor, class number)"
    if not isinstance(item, (tuple, list)) or len(item) != 2:
        raise UserError(f"data {name}: item {index} is a {type(item).__name__}, not a pair; {wanted}")
    image, label = item
    if not isinstance(image, Tensor):
        raise UserError(
            f"data {name}: item {index} has a {type(image).__name__} in place of a tensor (a transform such as "
            f"torchvision's ToTensor may be missing); {wanted}"
        )
    if image.dtype != torch.uint8 and not image.is_floating_point():
        raise UserError(f"data {name}: item {index} is {image.dtype}; tensors must be uint8 or floating point")
    try:
        return image.detach().cpu(), operator.index(label)
    except TypeError as error:
        raise UserError(
            f"data {name}: item {index} has {label!r} ({type(label).__name__}) in place of a class; {wanted}"
        ) from error
