"""No image is at two places of a split: what is trained on is not tested on, and an image has one owner."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

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
    """Refuse indices outside the data set, and an image that is at two places.

    Images of the official test set may be in the tests of several clients, once in each.

    Args:
        train: per client indices of its training images, int64.
        val: the same for validation.
        test: the same for the test; in the official test set where `test_official`.
        test_official: whether the test images come from the official test set.
        num_samples: training images of the source, N.
        num_test: images of the official test set.
        where: who made the split, for the sentence.

    Raises:
        UserError: with one such image, its two places, and the number of such images.
    """
    places = list(_places(train, "training")) + list(_places(val, "validation"))
    tests = list(_places(test, "test"))
    for some, limit in ((places, num_samples), (tests, num_test if test_official else num_samples)):
        for client, part, indices in some:
            if len(indices) and not (indices.min() >= 0 and indices.max() < limit):
                raise UserError(
                    f"{where}: {part} samples of client {client} reach from {indices.min()} to {indices.max()} in "
                    f"{limit} samples, which are counted from 0"
                )
    if test_official:
        for place in tests:
            _refuse_twice([place], num_test, where)
    else:
        places += tests
    _refuse_twice(places, num_samples, where)


def _places(parts: Sequence[np.ndarray], what: str) -> Iterator[Located]:
    for client, indices in enumerate(parts):
        yield client, what, indices


def _refuse_twice(places: list[Located], limit: int, where: str) -> None:
    times = np.zeros(limit, dtype=np.int64)
    for _, _, indices in places:
        np.add.at(times, indices, 1)
    shared = np.flatnonzero(times > 1)
    if not len(shared):
        return
    image = int(shared[0])
    found = [(client, part) for client, part, indices in places for _ in range(int((indices == image).sum()))]
    (client, part), (other, as_what) = found[0], found[1]
    twice = (client, part) == (other, as_what)
    also = "twice" if twice else f"and among the {as_what} samples of client {other}"
    number = "" if len(shared) == 1 else f" ({len(shared)} samples are at two places)"
    raise UserError(f"{where}: sample {image} is among the {part} samples of client {client} {also}{number}; {REMEDY}")
