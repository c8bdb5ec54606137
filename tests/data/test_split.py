import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dfl_lightning.data import (
    IID,
    Digits,
    Dirichlet,
    FromDataset,
    LabelClusters,
    Partition,
    Pathological,
    RotatedClusters,
    Source,
    SwappedLabelClusters,
)
from dfl_lightning.data.splits.split import Split, draw_split
from dfl_lightning.utils.errors import UserError


def source_of(labels, test_labels, num_classes=10):
    def images(count):
        return torch.zeros(count, 1, 2, 2, dtype=torch.uint8)

    return Source(
        "S",
        images(len(labels)),
        torch.from_numpy(labels),
        num_classes,
        images(len(test_labels)),
        torch.from_numpy(test_labels),
    )


def drawn(source, partition, num_clients, test_fraction=None, val_fraction=0.0, test_size=100, samples=None, seed=0):
    assignment = partition.assign(source.labels.numpy(), source.num_classes, num_clients, seed)
    split = draw_split(source, assignment, "P", test_fraction, val_fraction, test_size, samples, seed)
    return assignment, split


BALANCED = source_of(np.arange(5000) % 10, np.arange(1000) % 10)


@settings(max_examples=60)
@given(
    num_clients=st.integers(1, 20),
    test_fraction=st.floats(0.01, 0.9),
    val_fraction=st.floats(0.01, 0.9),
    total=st.integers(200, 400),
    seed=st.integers(0, 1000),
)
def test_held_out_parts_are_disjoint_complete_and_never_empty(num_clients, test_fraction, val_fraction, total, seed):
    source = source_of(np.arange(total) % 10, np.arange(10))
    assignment, split = drawn(source, IID(), num_clients, test_fraction, val_fraction, seed=seed)
    for owned, train, val, test in zip(assignment.train, split.train, split.val, split.test, strict=True):
        assert min(len(train), len(val), len(test)) >= 1
        np.testing.assert_array_equal(np.sort(np.concatenate([train, val, test])), owned)
        assert len(test) == min(max(1, math.floor(test_fraction * len(owned) + 1e-9)), len(owned) - 1)


def test_digits_for_24_clients_have_the_documented_sizes():
    data = Digits(num_clients=24, partition=RotatedClusters())
    data.setup()
    assert set(data.clients.sizes("train").tolist()) == {56, 57}
    assert set(data.clients.sizes("test").tolist()) == {18}


@pytest.mark.parametrize("partition", [Dirichlet(0.1), Pathological(2), Pathological(3)], ids=Partition.describe)
def test_by_prior_test_classes_are_shares_rounded_up(partition):
    assignment, split = drawn(BALANCED, partition, 20)
    labels = BALANCED.test_labels.numpy()
    for prior, test in zip(assignment.prior, split.test, strict=True):
        assert len(np.unique(test)) == len(test)
        expected = [min(math.ceil(p * 100 - 1e-9), 100) for p in prior]
        assert np.bincount(labels[test], minlength=10).tolist() == expected


def test_by_prior_clients_may_share_test_images():
    _, split = drawn(BALANCED, Pathological(2), 50)
    assert sum(len(test) for test in split.test) == 50 * 100 > 1000


def test_a_class_with_few_test_images_gives_what_it_has():
    source = source_of(np.arange(5000) % 10, np.arange(30) % 10)
    _, split = drawn(source, Pathological(2), 10)
    assert {len(test) for test in split.test} == {6}


def test_by_counts_test_images_are_proportional_to_training_images():
    _, split = drawn(BALANCED, Dirichlet(0.5, "per_class"), 20)
    together = np.concatenate(split.test)
    np.testing.assert_array_equal(np.sort(together), np.arange(1000))
    labels = BALANCED.labels.numpy()
    have = np.stack([np.bincount(labels[part], minlength=10) for part in split.train])
    tested = np.stack([np.bincount(BALANCED.test_labels.numpy()[part], minlength=10) for part in split.test])
    exact = have / have.sum(0) * 100
    assert np.abs(tested - exact).max() <= 1 + 1e-9


@pytest.mark.parametrize("partition", [RotatedClusters(), SwappedLabelClusters()], ids=Partition.describe)
def test_each_cluster_divides_the_whole_test_set(partition):
    assignment, split = drawn(BALANCED, partition, 12)
    for cluster in np.unique(assignment.clusters):
        members = np.flatnonzero(assignment.clusters == cluster)
        together = np.concatenate([split.test[client] for client in members])
        np.testing.assert_array_equal(np.sort(together), np.arange(1000))


def test_label_clusters_divide_the_test_set_by_their_labels():
    _, split = drawn(BALANCED, LabelClusters(5), 20)
    labels = BALANCED.test_labels.numpy()
    np.testing.assert_array_equal(np.sort(np.concatenate(split.test)), np.arange(1000))
    for client, test in enumerate(split.test):
        assert set(labels[test]) == {2 * (client // 4), 2 * (client // 4) + 1}


def test_every_client_gets_a_test_image_despite_rounding():
    # 30 clients of 100 images each but one with 2; 60 test images.
    sizes = [100] * 29 + [2]
    ends = np.cumsum(sizes)
    dataset = torch.utils.data.TensorDataset(torch.zeros(ends[-1], 1), torch.zeros(ends[-1], dtype=torch.int64))
    tests = torch.utils.data.TensorDataset(torch.zeros(60, 1), torch.zeros(60, dtype=torch.int64))
    parts = [list(range(end - size, end)) for size, end in zip(sizes, ends, strict=True)]
    for seed in range(5):
        data = FromDataset(dataset, tests, parts=parts, seed=seed)
        data.setup()
        assert data.clients.sizes("test").min() == 1
        assert torch.cat(list(data.clients.test)).unique().numel() == 60


def test_samples_per_client_limits_each_clients_images():
    assignment, split = drawn(BALANCED, IID(), 10, test_fraction=0.25, val_fraction=0.2, samples=100)
    for owned, train, val, test in zip(assignment.train, split.train, split.val, split.test, strict=True):
        assert (len(train), len(val), len(test)) == (60, 15, 25)
        assert np.isin(np.concatenate([train, val, test]), owned).all()


def test_the_test_part_may_be_empty():
    _, split = drawn(BALANCED, IID(), 10, test_fraction=0.0)
    assert not any(len(test) for test in split.test)


@pytest.mark.parametrize(
    ("total", "options", "sentence"),
    [
        (5, {"test_fraction": 0.5}, r"client 0 has no test sample \(S, P: 5 samples for 5 clients\)"),
        (10, {"test_fraction": 0.5, "val_fraction": 0.5}, r"client 0 has no validation sample \(S, P: 10 samples"),
    ],
)
def test_a_client_without_images_is_named_with_a_remedy(total, options, sentence):
    source = source_of(np.zeros(total, dtype=int), np.zeros(4, dtype=int))
    with pytest.raises(UserError, match=sentence + r".*lower num_clients"):
        drawn(source, IID(), 5, **options)


def test_a_client_without_training_images_is_named():
    source = source_of(np.repeat([0, 1], [2, 50]), np.zeros(4, dtype=int), num_classes=2)
    with pytest.raises(UserError, match="client 0 has no training sample"):
        drawn(source, LabelClusters(2), 6)


def test_the_fingerprint_covers_the_owner_of_each_sample():
    def of(train, **options):
        parts = {"val": [np.empty(0, int)] * len(train), "test": [np.array([9])] * len(train), "test_official": False}
        return Split(train=[np.array(each, dtype=int) for each in train], partition="", **{**parts, **options})

    divisions = [of([[0, 1], [2]]), of([[0], [1, 2]]), of([[1, 0], [2]]), of([[0, 1, 2], []]), of([[0, 1], [2], []])]
    for done in ({"rotation": np.array([0, 90])}, {"adversaries": np.array([False, True])}, {"test_official": True}):
        divisions.append(of([[0, 1], [2]], **done))
    assert len({division.fingerprint for division in divisions}) == len(divisions)
    assert of([[0, 1], [2]]).fingerprint == divisions[0].fingerprint
