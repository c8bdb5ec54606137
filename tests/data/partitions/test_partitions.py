"""Properties that every partition keeps, whatever the numbers."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dfl_lightning.data import (
    IID,
    Dirichlet,
    LabelClusters,
    Pathological,
    RotatedClusters,
    SwappedLabelClusters,
)

ALL = [
    IID(),
    Dirichlet(),
    Dirichlet(flavour="per_class", min_size=1, alpha=1.0),
    Pathological(),
    Pathological(3, alpha=0.5),
    RotatedClusters([0, 90]),
    SwappedLabelClusters(),
    LabelClusters(2),
]


def names(partition):
    return partition.describe()


@pytest.mark.parametrize("partition", ALL, ids=names)
@settings(max_examples=25, deadline=None)
@given(
    num_clients=st.integers(2, 30),
    per_client=st.integers(20, 60),
    num_classes=st.integers(8, 12),
    seed=st.integers(0, 2**31),
)
def test_any_valid_numbers_give_disjoint_nonempty_parts(partition, num_clients, per_client, num_classes, seed):
    total = num_clients * per_client + seed % 7
    labels = np.random.default_rng(seed).integers(0, num_classes, total)
    labels[:num_classes] = np.arange(num_classes)
    parts = partition.assign(labels, num_classes, num_clients, seed).train
    together = np.concatenate(parts)
    assert len(parts) == num_clients
    assert all(len(part) for part in parts)
    assert len(np.unique(together)) == len(together)
    assert together.min() >= 0
    assert together.max() < total
    assert all((np.diff(part) > 0).all() for part in parts)


@pytest.mark.parametrize("partition", [ALL[i] for i in (0, 2, 5, 6)], ids=names)
def test_partitions_that_promise_it_give_away_every_image(partition):
    labels = np.arange(503) % 10
    together = np.concatenate(partition.assign(labels, 10, 12, seed=3).train)
    np.testing.assert_array_equal(np.sort(together), np.arange(503))


@pytest.mark.parametrize("partition", ALL, ids=names)
def test_the_same_seed_gives_the_same_parts_and_another_seed_gives_others(partition):
    labels = np.arange(600) % 10
    once, again, other = (partition.assign(labels, 10, 12, seed).train for seed in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(once, again, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(once, other, strict=True))


@pytest.mark.parametrize("partition", ALL, ids=names)
def test_the_global_generator_of_numpy_is_neither_read_nor_moved(partition):
    labels = np.arange(600) % 10
    np.random.seed(0)
    before = np.random.get_state()[1].copy()
    first = partition.assign(labels, 10, 12, seed=0).train
    assert np.array_equal(np.random.get_state()[1], before)
    np.random.seed(1)
    second = partition.assign(labels, 10, 12, seed=0).train
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))
