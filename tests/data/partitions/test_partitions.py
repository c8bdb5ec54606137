"""Properties that every partition keeps, whatever the numbers."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dfl_lightning.cli.classes.registry import shipped_classes
from dfl_lightning.data import (
    IID,
    ByWriter,
    ClassCounts,
    Dirichlet,
    FlippedLabels,
    LabelClusters,
    Pathological,
    RotatedClusters,
    Shards,
    Source,
    SwappedLabelClusters,
)


class FewOfEach:
    """`ClassCounts` is made for a number of clients: here client i has 1 + i % 2 images of class i % 8."""

    needs_writers = False

    def describe(self):
        return "ClassCounts"

    def divide(self, source, num_clients, seed):
        counts = [{i % 8: 1 + i % 2, (i + 1) % 8: 1} for i in range(num_clients)]
        return ClassCounts(counts).divide(source, num_clients, seed)


EVERYTHING = [
    IID(),
    Dirichlet(flavour="per_class", min_size=1, alpha=1.0),
    RotatedClusters([0, 90]),
    SwappedLabelClusters(),
    Shards(),
    FlippedLabels(0.5),
    FlippedLabels(0.5, base=Shards(3)),
]
"""Partitions that promise to give away every image."""

ALL = [
    *EVERYTHING,
    Dirichlet(),
    Pathological(),
    Pathological(3, alpha=0.5),
    LabelClusters(2),
    LabelClusters(labels=[[0, 1, 2], [7, 3]]),
    Shards(2, shards=70),
    ByWriter(min_samples=1),
    ByWriter(min_samples=1, classes=2),
    FlippedLabels(0.5, base=ByWriter(1)),
    FewOfEach(),
]


def source_of(labels, num_classes, num_writers):
    """Images of these classes, by writers in turn."""
    writers = torch.arange(len(labels)) % num_writers
    names = tuple(f"w{writer}" for writer in range(num_writers))
    return Source(
        "S", torch.zeros(len(labels), 1), torch.from_numpy(labels), num_classes, writers=writers, writer_names=names
    )


def names(partition):
    return partition.describe()


TWELVE = source_of(np.arange(600) // 5 % 10, 10, num_writers=15)


def test_every_shipped_partition_is_among_those_tested_here():
    tested = {type(partition).__name__ for partition in ALL} - {"FewOfEach"} | {"ClassCounts"}
    assert tested == set(shipped_classes("data.partition"))


@pytest.mark.parametrize("partition", ALL, ids=names)
@settings(max_examples=25)
@given(
    num_clients=st.integers(2, 30),
    per_client=st.integers(35, 60),
    num_classes=st.integers(8, 12),
    seed=st.integers(0, 2**31),
)
def test_any_valid_numbers_give_disjoint_nonempty_parts(partition, num_clients, per_client, num_classes, seed):
    total = num_clients * per_client + seed % 7
    labels = np.random.default_rng(seed).integers(0, num_classes, total)
    labels[: 8 * 8] = np.arange(64) % 8
    source = source_of(labels, num_classes, num_clients + 2)
    assignment = partition.divide(source, num_clients, seed)
    parts = assignment.train
    together = np.concatenate(parts)
    assert len(parts) == num_clients
    assert all(len(part) for part in parts)
    assert len(np.unique(together)) == len(together)
    assert together.min() >= 0
    assert together.max() < total
    assert all((np.diff(part) > 0).all() for part in parts)
    assert together.dtype == np.int64
    for field in ("clusters", "rotation", "label_map", "test_label_map", "prior", "adversaries", "writers"):
        known = getattr(assignment, field)
        assert known is None or len(known) == num_clients


@pytest.mark.parametrize("partition", EVERYTHING, ids=names)
def test_complete_partitions_assign_every_image(partition):
    source = source_of(np.arange(503) % 10, 10, 4)
    together = np.concatenate(partition.divide(source, 12, seed=3).train)
    np.testing.assert_array_equal(np.sort(together), np.arange(503))


@pytest.mark.parametrize("partition", ALL, ids=names)
def test_the_seed_determines_the_parts(partition):
    once, again, other = (partition.divide(TWELVE, 12, seed).train for seed in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(once, again, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(once, other, strict=True))


@pytest.mark.parametrize("partition", ALL, ids=names)
def test_partitions_do_not_use_numpys_global_generator(partition):
    np.random.seed(0)
    before = np.random.get_state()[1].copy()
    first = partition.divide(TWELVE, 12, seed=0)
    assert np.array_equal(np.random.get_state()[1], before)
    np.random.seed(1)
    second = partition.divide(TWELVE, 12, seed=0)
    assert all(np.array_equal(a, b) for a, b in zip(first.train, second.train, strict=True))
    assert np.array_equal(first.adversaries, second.adversaries)
