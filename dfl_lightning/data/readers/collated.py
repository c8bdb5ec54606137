"""Data sets whose items a user's function brings to one form, as a collator that pads sequences."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch.utils.data import Dataset

from dfl_lightning.data.readers.items import item_of, length_of
from dfl_lightning.utils.errors import UserError, reason, reported_as

__all__ = ["collated"]


class _Batch(Dataset):
    """The items of one batch that a user's function has made.

    Args:
        batch: pair (inputs, targets), or a dict with the targets as `labels` or `label`; tensors have all items.
        items: indices of the items, from the first one on.
    """

    def __init__(self, batch: Any, items: range) -> None:
        self._batch, self._items = batch, items

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, index: int) -> Any:
        return _entry(self._batch, self._items[index])


def _entry(batch: Any, index: int) -> Any:
    """Return the entry of one item in nested pairs and dicts of tensors."""
    if isinstance(batch, Mapping):
        return {name: _entry(value, index) for name, value in batch.items()}
    return tuple(_entry(value, index) for value in batch) if isinstance(batch, tuple | list) else batch[index]


def collated(
    collate: Callable[[list[Any]], Any], dataset: Dataset, test_dataset: Dataset | None, name: str
) -> tuple[Dataset, Dataset | None]:
    """Make one batch of the items of both data sets, and return its items as two data sets.

    Args:
        collate: function of a list of items.
        dataset: a map-style data set.
        test_dataset: another one, or None.
        name: name of the data set, for messages.

    Raises:
        UserError: an item is not there, or the function fails.
    """
    lengths = [length_of(some, name) for some in (dataset, test_dataset) if some is not None]
    items = [item_of(dataset, index, lengths[0], name) for index in range(lengths[0])]
    if test_dataset is not None:
        items += [item_of(test_dataset, index, lengths[1], name) for index in range(lengths[1])]
    with reported_as(lambda error: UserError(f"data.collate fails on {len(items)} items of {name} ({reason(error)})")):
        batch = collate(items)
        first, rest = _Batch(batch, range(lengths[0])), _Batch(batch, range(lengths[0], len(items)))
        _entry(batch, len(items) - 1)
    return first, None if test_dataset is None else rest
