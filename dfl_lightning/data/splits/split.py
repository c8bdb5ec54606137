"""Splits, which list the training, validation and test samples of each client."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from dfl_lightning.data.fingerprint import checksum_of
from dfl_lightning.data.partitions.base import Assignment
from dfl_lightning.data.partitions.dirichlet import divide
from dfl_lightning.data.source import Source
from dfl_lightning.data.splits.index_lists import sorted_pieces
from dfl_lightning.data.splits.ownership import refuse_shared_images
from dfl_lightning.utils.errors import UserError
from dfl_lightning.utils.randomness.random_streams import numpy_stream, numpy_streams

__all__ = ["Split", "draw_split"]


@dataclass(frozen=True)
class Split:
    """A complete division of a data set among clients, as it is saved in `split.npz`.

    Attributes:
        train: indices of each client's training samples in the source's training samples, int64, sorted.
        val: indices of each client's validation samples, likewise.
        test: indices of each client's test samples, in the official test set if `test_official`.
        test_official: True if the test samples come from the official test set.
        rotation: counter-clockwise rotation of each client's images in degrees, float64 [m], or None.
        label_map: new name of each class for each client, int64 [m, C], or None.
        test_label_map: label map of test samples, if it differs, or None.
        clusters: ground-truth clusters, int64 [m], or None.
        adversaries: clients whose training labels were falsified, bool [m], or None.
        writers: name of the writer that each client is, str [m], or None.
        partition: the partition's description of itself, for the banner.
        input_means: means that are subtracted from the columns of the inputs, float64 [d]; None if the columns are not
            standardised.
        input_deviations: standard deviations that the columns are then divided by, float64 [d], or None.
        target_means: means of the columns of targets, float64 [k], or None.
        target_deviations: standard deviations of the columns of targets, float64 [k], or None.
        client_means: means of each client's columns, float64 [m, C]; None if columns are not standardised for each
            client.
        client_deviations: standard deviations of each client's columns, float64 [m, C], or None.
    """

    train: list[np.ndarray]
    val: list[np.ndarray]
    test: list[np.ndarray]
    test_official: bool
    rotation: np.ndarray | None = None
    label_map: np.ndarray | None = None
    clusters: np.ndarray | None = None
    partition: str = ""
    test_label_map: np.ndarray | None = None
    adversaries: np.ndarray | None = None
    writers: np.ndarray | None = None
    input_means: np.ndarray | None = None
    input_deviations: np.ndarray | None = None
    target_means: np.ndarray | None = None
    target_deviations: np.ndarray | None = None
    client_means: np.ndarray | None = None
    client_deviations: np.ndarray | None = None

    @cached_property
    def fingerprint(self) -> int:
        """A checksum of the samples of each client, and of their rotations and label maps."""
        arrays: list[np.ndarray | None] = []
        # Two arrays contain the indices of all clients, since there may be a million of these.
        for part in (self.train, self.val, self.test):
            sizes = np.array([len(array) for array in part], dtype=np.int64)
            arrays += [sizes, np.concatenate([np.empty(0, np.int64), *part]).astype(np.int64)]
        transformations = (self.rotation, self.label_map, self.test_label_map, self.adversaries)
        arrays += [array if array is None else array.astype(np.float64) for array in transformations]
        tensors = [array if array is None else torch.from_numpy(array) for array in arrays]
        return checksum_of(tensors, self.test_official)


def draw_split(
    source: Source,
    assignment: Assignment,
    partition: str,
    test_fraction: float | None,
    val_fraction: float,
    test_size: int,
    samples_per_client: int | None,
    seed: int,
) -> Split:
    """Draw the validation and test samples of each client, which follow the distribution of its training samples.

    Args:
        source: the data set.
        assignment: the samples of each client.
        partition: the partition's description of itself.
        test_fraction: share of each client's samples that is held out for its test, in [0, 1); None takes the test
            samples from the official test set.
        val_fraction: share of the remaining samples that is held out for validation, in [0, 1).
        test_size: number of each client's test samples, if they follow the assignment's class prior.
        samples_per_client: largest number of samples of a client; None keeps all.
        seed: seed of the split.

    Raises:
        UserError: a client is left without training, validation or test samples, or a sample belongs to two clients.
    """
    shuffled, lengths = [np.empty(0, dtype=np.int64)], list[int]()
    for owned, rng in zip(assignment.train, numpy_streams(seed, "held-out images", len(assignment.train)), strict=True):
        shuffled.append(rng.permutation(owned)[:samples_per_client])
        size = len(shuffled[-1])
        num_test = _share(test_fraction or 0.0, size)
        num_val = _share(val_fraction, size - num_test)
        lengths += [num_test, num_val, size - num_test - num_val]
    pieces = sorted_pieces(np.concatenate(shuffled), np.array(lengths, dtype=np.int64))
    test, val, train = pieces[::3], pieces[1::3], pieces[2::3]
    _require(train, "training", partition, source, "lower num_clients")
    if val_fraction > 0:
        _require(val, "validation", partition, source, "lower num_clients or set val_fraction: 0")
    if test_fraction is None:
        if assignment.test is not None:
            test = [np.sort(part) for part in assignment.test]
        elif assignment.prior is not None:
            test = _test_by_prior(source, assignment.prior, test_size, seed)
        else:
            test = _test_by_counts(source, assignment, train, seed)
    if test_fraction is None or test_fraction > 0:
        _require(test, "test", partition, source, "lower num_clients or change test_fraction")
    refuse_shared_images(
        train, val, test, test_fraction is None, len(source.labels), source.num_test, f"data.partition {partition}"
    )
    return Split(
        train=train,
        val=val,
        test=test,
        test_official=test_fraction is None,
        rotation=assignment.rotation,
        label_map=assignment.label_map,
        clusters=assignment.clusters,
        partition=partition,
        test_label_map=assignment.test_label_map,
        adversaries=assignment.adversaries,
        writers=assignment.writers,
    )


def _share(fraction: float, size: int) -> int:
    """Compute a share of `size` samples, rounded down; at least 1 for a positive share, but not all samples."""
    if fraction <= 0 or size < 2:
        return 0
    return min(max(1, math.floor(fraction * size + 1e-9)), size - 1)


def _require(parts: list[np.ndarray], what: str, partition: str, source: Source, remedy: str) -> None:
    """Raise if a client has no sample in a part."""
    for client, part in enumerate(parts):
        if not len(part):
            raise UserError(
                f"data: client {client} has no {what} sample ({source.name}, {partition}: {len(source.labels)} samples "
                f"for {len(parts)} clients); {remedy}"
            )


def _test_by_prior(source: Source, prior: np.ndarray, test_size: int, seed: int) -> list[np.ndarray]:
    """Draw ceil(prior * test_size) test samples of each class for each client, without replacement (as in Dis-PFL)."""
    strata = _strata_of_test(source).numpy()
    pools = [np.flatnonzero(strata == c) for c in range(prior.shape[1])]
    wanted = np.ceil(prior * test_size - 1e-9).astype(np.int64)  # in floating point, 0.07 * 100 is a little above 7
    tests = []
    for client, row in enumerate(wanted):
        rng = numpy_stream(seed, "test images", client)
        drawn = [rng.permutation(pool)[:count] for pool, count in zip(pools, row, strict=True)]
        tests.append(np.sort(np.concatenate(drawn)))
    return tests


def _test_by_counts(source: Source, assignment: Assignment, train: list[np.ndarray], seed: int) -> list[np.ndarray]:
    """Divide the test samples of each class in proportion to the clients' training samples of it.

    Each cluster that transforms its samples divides the whole test set (as in PANM); otherwise all clients divide it.
    """
    labels, num_strata = _strata_of_test(source).numpy(), source.num_strata
    groups = assignment.groups_of_test()
    have = np.stack([source.stratum_counts(part) for part in train])
    tests: list[np.ndarray] = [np.empty(0, dtype=np.int64) for _ in train]
    for group in np.unique(groups):
        rng = numpy_stream(seed, "test division", int(group))
        members = np.flatnonzero(groups == group)
        counts = _proportional(have[members], np.bincount(labels, minlength=num_strata), rng)
        pools = [rng.permutation(np.flatnonzero(labels == c)) for c in range(num_strata)]
        ends = counts.cumsum(0)
        for row, client in enumerate(members):
            drawn = [pool[end - n : end] for pool, n, end in zip(pools, counts[row], ends[row], strict=True)]
            tests[client] = np.sort(np.concatenate(drawn))
    return tests


def _strata_of_test(source: Source) -> Tensor:
    """Return the strata of the official test set, int64 [T].

    Raises:
        UserError: the official test set has no strata.
    """
    strata = source.strata_of[1]
    if strata is None:
        raise UserError(
            f"data: nothing says how the official test set of {source.name} follows the clients' samples; set "
            "data.test_fraction to hold out a share of each client's own, for example 0.25"
        )
    return strata


def _proportional(have: np.ndarray, available: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Compute the numbers of test samples of each class for each client of a group, int64 [members, C].

    Args:
        have: numbers of training samples, int64 [members, C], to which the result is proportional.
        available: number of test samples of each class, int64 [C].
        rng: generator of the order in which clients are rounded.
    """
    counts = np.zeros_like(have)
    for c in np.flatnonzero(have.sum(0)):
        order = rng.permutation(len(have))  # a random order, so that rounding favours no client
        counts[order, c] = divide(int(available[c]), have[order, c])
    # A client that has nothing by rounding gets one sample from the client that has most.
    for member in np.flatnonzero(counts.sum(1) == 0):
        commonest = int(have[member].argmax())
        donor = int(np.where(counts[:, commonest] > 0, counts.sum(1), 0).argmax())
        if counts[donor, commonest] > 0 and counts[donor].sum() > 1:
            counts[donor, commonest] -= 1
            counts[member, commonest] += 1
    return counts
