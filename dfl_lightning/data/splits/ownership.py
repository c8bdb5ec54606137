"""A check that each sample of a split belongs to one client and one part: training, validation or test."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import numpy as np

from dfl_lightning.utils.errors import UserError

__all__ = ["refuse_shared_images"]

Located = tuple[int, str, np.ndarray]
REMEDY = "give each sample to one client, for one purpose"


def refuse_shared_images(
    train: Sequence[np.ndarray],
    val: Sequence[np.ndarray],
    test: Sequence[np.ndarray],
    test_official: bool,
    num_samples: int,
    num_test: int,
    where: str,
) -> None:
    """Raise if an index is outside the data set, or a sample occurs twice in the split.

    Samples of the official test set may be test samples of several clients, once for each.

    Args:
        train: indices of each client's training samples, int64.
        val: indices of each client's validation samples.
        test: indices of each client's test samples; in the official test set if `test_official`.
        test_official: True if the test samples come from the official test set.
        num_samples: number of training samples of the source, N.
        num_test: number of samples of the official test set.
        where: origin of the split, for the message.

    Raises:
        UserError: an index is outside, or a sample occurs twice; the message names both places and the number of such
            samples.
    """
    num_of_test = num_test if test_official else num_samples
    parts = {"training": (train, num_samples), "validation": (val, num_samples), "test": (test, num_of_test)}
    flat = {part: _flat(lists) for part, (lists, _) in parts.items()}
    for part, (lists, limit) in parts.items():
        if len(flat[part]) and not (flat[part].min() >= 0 and flat[part].max() < limit):
            _raise_outside(part, lists, limit, where)
    if test_official:
        owners = np.arange(len(test)).repeat([len(indices) for indices in test])
        codes, times = np.unique(owners * num_test + flat.pop("test"), return_counts=True)
        if (times > 1).any():
            client = int(codes[times > 1][0]) // num_test
            _raise_shared(np.bincount(test[client]), [(client, "test", test[client])], where)
    times = np.bincount(np.concatenate(list(flat.values())), minlength=num_samples)
    if (times > 1).any():
        lists_of_all = [(client, part, own) for part in flat for client, own in enumerate(parts[part][0])]
        _raise_shared(times, lists_of_all, where)


def _flat(lists: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.empty(0, dtype=np.int64), *lists])


def _raise_shared(times: np.ndarray, lists: list[Located], where: str) -> NoReturn:
    """Raise an error that names one sample that occurs several times, and two of its places.

    Args:
        times: number of occurrences of each sample, [N].
        lists: clients with the names of parts and the indices of their samples.
        where: origin of the split, for the message.
    """
    shared = np.flatnonzero(times > 1)
    image = int(shared[0])
    places = [(client, part) for client, part, indices in lists for _ in range(int((indices == image).sum()))]
    (client, part), (other, other_part) = places[0], places[1]
    twice = (client, part) == (other, other_part)
    also = "twice" if twice else f"and among the {other_part} samples of client {other}"
    number = "" if len(shared) == 1 else f" ({len(shared)} samples are at two places)"
    raise UserError(f"{where}: sample {image} is among the {part} samples of client {client} {also}{number}; {REMEDY}")


def _raise_outside(part: str, lists: Sequence[np.ndarray], limit: int, where: str) -> None:
    """Raise an error that names the first client with an index below 0, or of `limit` or more."""
    for client, indices in enumerate(lists):
        if len(indices) and not (indices.min() >= 0 and indices.max() < limit):
            raise UserError(
                f"{where}: {part} samples of client {client} reach from {indices.min()} to {indices.max()} in "
                f"{limit} samples, which are counted from 0"
            )
