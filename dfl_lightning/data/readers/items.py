"""Reading of a user's map-style data set into tensors, and what its targets mean."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from dfl_lightning.data.parts import Parts
from dfl_lightning.utils.errors import UserError, reason, reported_as
from dfl_lightning.utils.plain_tensors import unusual

__all__ = ["as_classes", "count_classes", "form", "item_of", "length_of", "read_items"]

_MOST_GAPS = 1000  # accepted number of class numbers that do not occur, in addition to ten for each that does
_READ_TWICE = 16  # items that are read again, to find out whether they are drawn


def read_items(dataset: Dataset, name: str) -> tuple[Tensor, Tensor, Parts | None]:
    """Read all items of a data set into two tensors, and a few of them again.

    Args:
        dataset: a map-style data set of (inputs, target) pairs.
        name: name of the data set, for messages.

    Returns:
        Inputs, targets, and the parts of a row of inputs, if these are rows.

    Raises:
        UserError: items are missing, are not such pairs, differ in shape or dtype, or differ when they are read again.
    """
    length = length_of(dataset, name)
    images, labels, parts = torch.empty(0), torch.empty(0), None
    for index in range(length):
        image, label, of_item = _packed(item_of(dataset, index, length, name), index, name)
        # Targets [2, d] would be taken for numbers and their scales.
        if label.is_floating_point() and label.dim() > 1:
            raise UserError(
                f"data {name}: the target of item {index} is {_kind(label)}; give one number, or one row of numbers "
                "(target.flatten())"
            )
        if not index:
            images, labels = image.new_empty((length, *image.shape)), label.new_empty((length, *label.shape))
            parts = of_item
        if of_item != parts:
            raise UserError(
                f"data {name}: the inputs of item {index} are {form(of_item)}, those of item 0 {form(parts)}; bring "
                "all to one form: sequences to one length, by data.collate or padding='max_length' of a tokenizer"
            )
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
    for index in sorted({round(step * (length - 1) / (_READ_TWICE - 1)) for step in range(_READ_TWICE)}):
        image, label, _ = _packed(item_of(dataset, index, length, name), index, name)
        if not (_same(image, images[index]) and _same(label, labels[index])):
            raise UserError(
                f"data {name}: item {index} differs when it is read again, as if a transform drew it at random, and "
                "items are read only once, before the run; take the transform out of the data set, and give it as "
                "data.augment, which changes the samples of each training batch"
            )
    return images, labels, parts


def length_of(dataset: Dataset, name: str) -> int:
    """Return the number of items of a map-style data set.

    Args:
        dataset: the data set.
        name: its name in messages.

    Raises:
        UserError: it has no length, or no items.
    """
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
    return length


def _same(one: Tensor, other: Tensor) -> bool:
    """Return True if two tensors are equal, where NaN equals NaN."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return torch.equal(one, other) or bool(((one == other) | ((one != one) & (other != other))).all())


def as_classes(labels: Tensor, images: Tensor, name: str) -> tuple[Tensor, int]:
    """Convert targets that are classes in one column, or one-hot, to classes, int64 [N].

    Lines of tokens [N, T] for inputs of T tokens, numbers of a regression and bool labels stay as they are.

    Args:
        labels: targets, [N, ...].
        images: inputs, [N, ...].
        name: name of the data set, for messages.

    Returns:
        The targets, and the number of classes that were one-hot columns, otherwise 0.

    Raises:
        UserError: targets are several whole numbers for each item, which are neither one-hot nor a line of tokens.
    """
    if labels.dim() != 2 or labels.dtype == torch.bool:
        return labels, 0
    columns, whole = labels.shape[1], not labels.is_floating_point()
    if whole and columns == 1:
        return labels[:, 0].long(), 0
    is_one = labels == 1
    if columns > 1 and bool((is_one | (labels == 0)).all()) and bool((is_one.sum(1) == 1).all()):
        return is_one.int().argmax(1), columns
    if whole and not (images.dim() in (2, 3) and images.shape[1] == columns):
        raise UserError(
            f"data {name}: the target of item 0 is {columns} whole numbers, {_listed(labels[0])}; give one number, the "
            "class, or all 0 but a single 1 (one-hot), or bool where several labels may hold, or floating-point "
            "numbers for a regression"
        )
    return labels, 0


def count_classes(labels: Tensor, name: str) -> int:
    """Return the largest class + 1.

    Args:
        labels: classes of all samples, [N].
        name: name of the data set, for the message.

    Raises:
        UserError: the largest class is much more than the number of different classes.
    """
    distinct = labels.unique()
    highest = int(distinct[-1])
    if highest >= _MOST_GAPS + 10 * len(distinct):
        raise UserError(
            f"data {name}: the largest label is {highest}, but only {len(distinct)} labels occur; number the classes "
            f"from 0 on, or set num_classes if there are {highest + 1} of them"
        )
    return highest + 1


def _listed(numbers: Tensor) -> str:
    shown = ", ".join(str(number) for number in numbers[:4].tolist())
    return f"[{shown}{', …' * (len(numbers) > 4)}]"


def form(parts: Parts | None) -> str:
    """Describe the parts of inputs, for messages."""
    return "one tensor of numbers" if parts is None else str(parts)


def _kind(target: Tensor) -> str:
    return f"{str(target.dtype).removeprefix('torch.')} {list(target.shape)}"


def item_of(dataset: Dataset, index: int, length: int, name: str) -> object:
    """Return one item of a data set.

    Args:
        dataset: a map-style data set.
        index: number of the item.
        length: number of items.
        name: name of the data set, for the message.

    Raises:
        UserError: the item is not there.
    """
    try:
        return dataset[index]
    except (IndexError, KeyError, StopIteration) as error:
        raise UserError(
            f"data {name}: item {index} of {length} is not there ({type(error).__name__}: {reason(error)}); its length "
            "and its items must agree"
        ) from error


_WANTED = "each item must be a pair (inputs, target), the target a class number or floating-point numbers"


def _pair(item: object, index: int, name: str) -> tuple[Any, Tensor]:
    """Divide an item into inputs and target."""
    if isinstance(item, Mapping):
        key = next((key for key in ("labels", "label") if key in item), None)
        if key is None:
            raise UserError(
                f"data {name}: item {index} is a {type(item).__name__} with {', '.join(map(str, item))} and no labels; "
                f"{_WANTED}, or a dict with the target as 'labels'"
            )
        item = ({part: value for part, value in item.items() if part != key}, item[key])
    if not isinstance(item, (tuple, list)) or len(item) != 2:
        raise UserError(f"data {name}: item {index} is a {type(item).__name__}, not a pair; {_WANTED}")
    return item[0], _target(item[1], index, name, _WANTED)


def _packed(item: object, index: int, name: str) -> tuple[Tensor, Tensor, Parts | None]:
    """Return the tensor of an item's inputs, the only one or a row with all of them, the target, and a row's parts."""
    inputs, label = _pair(item, index, name)
    if isinstance(inputs, Tensor):
        tensor = _dense(inputs, "", index, name)
        if tensor.dtype == torch.uint8 or tensor.is_floating_point():
            return tensor, label, None
        whole: Any = tensor
    elif isinstance(inputs, Mapping) and inputs:
        whole = {str(part): _dense(value, f" '{part}'", index, name) for part, value in inputs.items()}
    elif isinstance(inputs, tuple | list) and inputs:
        whole = tuple(_dense(value, f" number {part}", index, name) for part, value in enumerate(inputs))
    else:
        raise UserError(
            f"data {name}: item {index} has a {type(inputs).__name__} instead of a tensor (a transform such as "
            f"torchvision's ToTensor may be missing); {_WANTED}, inputs a tensor, a tuple or a dict of tensors"
        )
    with reported_as(lambda error: UserError(f"data {name}: item {index} ({reason(error)})")):
        parts = Parts.of(whole)
        return parts.pack(whole), label, parts


def _dense(value: object, which: str, index: int, name: str) -> Tensor:
    """Return a tensor of an item's inputs; a list of numbers becomes one."""
    if isinstance(value, list | np.ndarray | int | float | bool):
        with reported_as(lambda error: UserError(f"data {name}: part{which} of item {index}: {reason(error)}")):
            value = torch.as_tensor(value)
    if not isinstance(value, Tensor):
        raise UserError(
            f"data {name}: part{which} of item {index} is a {type(value).__name__} instead of a tensor; {_WANTED}, "
            "inputs a tensor, a tuple or a dict of tensors"
        )
    if why := unusual(value):
        raise UserError(f"data {name}: item {index} is {why}; tensors must be dense numbers")
    return value.detach().cpu()


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
