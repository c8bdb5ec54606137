import numpy as np
import pytest
import torch

from dfl_lightning.data import (
    Digits,
    Dirichlet,
    FlippedLabels,
    Pathological,
    RotatedClusters,
    Shards,
    SwappedLabelClusters,
)
from dfl_lightning.utils.errors import UserError

LABELS = np.arange(5000) % 10


def test_dpfls_attack_flips_40_of_100_clients_by_one_reversal():
    assignment = FlippedLabels().assign(LABELS, 10, 100, seed=0)
    assert assignment.adversaries.dtype == bool
    assert assignment.adversaries.sum() == 40
    for flipped, names in zip(assignment.adversaries, assignment.label_map, strict=True):
        assert names.tolist() == ([9, 8, 7, 6, 5, 4, 3, 2, 1, 0] if flipped else list(range(10)))
    assert (assignment.test_label_map == np.arange(10)).all()


def test_all_clients_are_flipped_equally_often_over_seeds():
    times = sum(FlippedLabels(0.5).assign(LABELS, 10, 10, seed).adversaries for seed in range(400)) / 400
    assert np.abs(times - 0.5).max() < 4 * 0.5 / np.sqrt(400)


@pytest.mark.parametrize(("fraction", "clients", "flipped"), [(0, 7, 0), (1, 7, 7), (0.5, 7, 4), (0.34, 3, 1)])
def test_the_fraction_is_rounded_to_whole_clients(fraction, clients, flipped):
    assert FlippedLabels(fraction).assign(LABELS, 10, clients, seed=0).adversaries.sum() == flipped


def test_training_and_validation_labels_are_flipped_but_not_test_labels():
    data = Digits(num_clients=6, val_fraction=0.2, partition=FlippedLabels(clients=[4, 1]))
    data.setup()
    assert data.clients.adversaries.tolist() == [False, True, False, False, True, False]
    for part in ("train", "val", "test"):
        for client, indices in enumerate(getattr(data.clients, part)):
            own = torch.from_numpy(getattr(data.client_split, part)[client])
            true = data.source.labels[own]
            flipped = client in (1, 4) and part != "test"
            assert torch.equal(data.clients.labels[indices], 9 - true if flipped else true)
            assert torch.equal(data.clients.images[indices], data.source.images[own])


def test_a_given_permutation_renames_the_labels_of_flipped_clients():
    turned = [*range(1, 10), 0]
    data = Digits(num_clients=4, partition=FlippedLabels(1.0, permutation=turned))
    data.setup()
    true = data.source.labels[torch.from_numpy(data.client_split.train[2])]
    assert torch.equal(data.clients.labels[data.clients.train[2]], (true + 1) % 10)


@pytest.mark.parametrize(
    "base",
    [Dirichlet(0.3, "per_class"), Pathological(2), RotatedClusters([0, 90]), Shards()],
    ids=lambda b: b.describe(),
)
def test_flipping_changes_labels_only(base, toy):
    def split(partition):
        data = toy(num_clients=4, partition=partition, test_size=5, seed=3)
        data.sizes = (400, 300)
        data.setup()
        return data.client_split

    plain, attacked = split(base), split(FlippedLabels(0.5, base=base))
    for part in ("train", "val", "test"):
        for ours, theirs in zip(getattr(plain, part), getattr(attacked, part), strict=True):
            np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_array_equal(plain.rotation, attacked.rotation)


def test_flipped_clients_form_clusters_of_their_own():
    assert FlippedLabels(clients=[1]).assign(LABELS, 10, 3, seed=0).clusters.tolist() == [0, 1, 0]
    both = FlippedLabels(clients=[1, 2], base=RotatedClusters([0, 90])).assign(LABELS, 10, 4, seed=0)
    assert both.clusters.tolist() == [0, 1, 3, 2]


def test_flipping_applies_after_the_label_swap_of_a_cluster():
    swapped = SwappedLabelClusters([[], [[0, 1]]])
    assignment = FlippedLabels(clients=[1], base=swapped).assign(LABELS, 10, 2, seed=0)
    assert assignment.label_map[1].tolist() == [8, 9, 7, 6, 5, 4, 3, 2, 1, 0]
    assert assignment.test_label_map[1].tolist() == [1, 0, *range(2, 10)]


def test_without_flipping_there_are_no_adversaries():
    data = Digits(num_clients=4)
    data.setup()
    assert data.clients.adversaries is None


def test_adversaries_are_known_on_the_cpu_wherever_the_images_are():
    data = Digits(num_clients=4, partition=FlippedLabels())
    data.setup()
    assert data.clients.to("meta").adversaries.tolist() == data.clients.adversaries.tolist()


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: FlippedLabels(1.1), "fraction must be from 0 to 1, not 1.1"),
        (lambda: FlippedLabels(float("nan")), "fraction must be from 0 to 1"),
        (lambda: FlippedLabels(clients=[1, 1]), "names a client twice"),
        (lambda: FlippedLabels(clients=[4]).assign(LABELS, 10, 4, 0), "names 4, but there are 4 clients, 0 to 3"),
        (lambda: FlippedLabels(clients=[-1]).assign(LABELS, 10, 4, 0), "names -1, but there are 4 clients"),
        (lambda: FlippedLabels(0.1).assign(LABELS, 10, 4, 0), "fraction 0.1 of 4 clients is none; raise fraction"),
        (lambda: FlippedLabels(permutation=[0, 1, 1]).assign(LABELS, 3, 4, 0), "each of the 3 classes, 0 to 2, once"),
        (lambda: FlippedLabels(permutation=[1, 0]).assign(LABELS, 10, 4, 0), "each of the 10 classes"),
    ],
)
def test_an_impossible_attack_is_refused_in_one_sentence(make, sentence):
    with pytest.raises(UserError, match=sentence):
        make()
