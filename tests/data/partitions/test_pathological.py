import numpy as np
import pytest

from dfl_lightning.data import Pathological
from dfl_lightning.utils.errors import UserError

LABELS = np.arange(5000) % 10


def counts_of(parts, labels=LABELS):
    return np.stack([np.bincount(labels[part], minlength=10) for part in parts])


@pytest.mark.parametrize(("classes", "clients"), [(1, 10), (2, 100), (2, 7), (3, 20), (5, 100), (10, 4)])
def test_every_client_has_the_given_classes_and_equal_size(classes, clients):
    assignment = Pathological(classes).assign(LABELS, 10, clients, seed=0)
    counts = counts_of(assignment.train)
    assert ((counts > 0).sum(1) == classes).all()
    assert len(set(counts.sum(1))) == 1
    np.testing.assert_array_equal(assignment.prior, (counts > 0) / classes)


def test_divisible_numbers_give_equal_counts_of_each_held_class():
    counts = counts_of(Pathological(2).assign(LABELS, 10, 100, seed=0).train)
    assert counts.sum() == 5000
    assert set(counts[counts > 0]) == {25}


def test_classes_are_held_equally_often():
    holders = (counts_of(Pathological(3).assign(LABELS, 10, 17, seed=0).train) > 0).sum(0)
    assert holders.max() - holders.min() <= 1


def test_all_pairs_of_classes_occur_among_many_clients():
    counts = counts_of(Pathological(2).assign(np.arange(50_000) % 10, 10, 2000, seed=0).train, np.arange(50_000) % 10)
    pairs = {tuple(np.flatnonzero(row)) for row in counts}
    assert len(pairs) == 45


def test_alpha_varies_sizes_and_keeps_ten_images_per_class():
    assignment = Pathological(3, alpha=0.5).assign(LABELS, 10, 20, seed=0)
    counts = counts_of(assignment.train)
    assert ((counts > 0).sum(1) == 3).all()
    assert counts[counts > 0].min() >= 10
    assert counts.sum(1).std() > 10
    held = (counts > 0).any(0)
    np.testing.assert_array_equal(counts.sum(0)[held], 500)
    assert assignment.prior is None


def test_more_classes_than_the_data_are_refused_with_both_numbers():
    with pytest.raises(UserError, match="11 classes a client, but the data have 10"):
        Pathological(11).assign(LABELS, 10, 5, seed=0)
