"""No sample is at two places of a split: what is trained on is not tested on, and a sample has one owner."""

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
    """Refuse indices outside the data set, and a sample that is at two places.

    Samples of the official test set may be in the tests of several clients, once in each.

    Args:
        train: per client indices of its training samples, int64.
        val: the same for validation.
        test: the same for the test; in the official test set where `test_official`.
        test_official: whether the test samples come from the official test set.
        num_samples: training samples of the source, N.
        num_test: samples of the official test set.
        where: who made the split, for the sentence.

    Raises:
        UserError: with one such sample, its two places, and the number of such samples.
    """
    limit = num_test if test_official else num_samples
    parts = {"training": (train, num_samples), "validation": (val, num_samples), "test": (test, limit)}
    flat = {part: _flat(lists) for part, (lists, _) in parts.items()}
    for part, (lists, limit) in parts.items():
        if len(flat[part]) and not (flat[part].min() >= 0 and flat[part].max() < limit):
            client, indices = next(
                (client, indices)
                for client, indices in enumerate(lists)
                if len(indices) and not (indices.min() >= 0 and indices.max() < limit)
            )
            raise UserError(
                f"{where}: {part} samples of client {client} reach from {indices.min()} to {indices.max()} in "
                f"{limit} samples, which are counted from 0"
            )
    if test_official:
        owners = np.arange(len(test)).repeat([len(indices) for indices in test])
        codes, times = np.unique(owners * num_test + flat.pop("test"), return_counts=True)
        if (times > 1).any():
            client = int(codes[times > 1][0]) // num_test
            _tell(np.bincount(test[client]), [(client, "test", test[client])], where)
    times = np.bincount(np.concatenate(list(flat.values())), minlength=num_samples)
    if (times > 1).any():
        _tell(times, [(client, part, own) for part in flat for client, own in enumerate(parts[part][0])], where)


def _flat(lists: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.empty(0, dtype=np.int64), *lists])


def _tell(times: np.ndarray, places: list[Located], where: str) -> NoReturn:
    """Name one of the samples that are at several places, and two of these."""
    shared = np.flatnonzero(times > 1)
    image = int(shared[0])
    found = [(client, part) for client, part, indices in places for _ in range(int((indices == image).sum()))]
    (client, part), (other, as_what) = found[0], found[1]
    twice = (client, part) == (other, as_what)
    also = "twice" if twice else f"and among the {as_what} samples of client {other}"
    number = "" if len(shared) == 1 else f" ({len(shared)} samples are at two places)"
    raise UserError(f"{where}: sample {image} is among the {part} samples of client {client} {also}{number}; {REMEDY}")
