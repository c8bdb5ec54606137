import itertools

import numpy as np
import pytest

from dfl_lightning.data import Shards
from dfl_lightning.utils.errors import UserError

LABELS = np.random.default_rng(0).permutation(np.arange(6000) % 10)


def classes_of(parts, labels=LABELS):
    return [set(labels[part]) for part in parts]


def test_mcmahans_100_clients_have_two_shards_of_one_class_each():
    # As in section 3 of the paper, a hundredth of MNIST: 200 shards, here of 30 images, 20 shards a class.
    parts = Shards(2).assign(LABELS, 10, 100, seed=0).train
    assert {len(part) for part in parts} == {60}
    assert {len(classes) for classes in classes_of(parts)} == {1, 2}


def test_the_number_of_one_class_clients_matches_probability():
    # The second of 200 shards is one of the 19 left of the first one's class with probability 19 / 199.
    alone = np.mean(
        [[len(c) == 1 for c in classes_of(Shards(2).assign(LABELS, 10, 100, seed).train)] for seed in range(40)]
    )
    expected = 19 / 199
    assert abs(alone - expected) < 4 * np.sqrt(expected * (1 - expected) / 4000)


def test_a_shard_is_a_block_of_images_sorted_by_label():
    # One shard a client: together they are the sorted data set, cut.
    parts = Shards(1).assign(LABELS, 10, 7, seed=5).train
    ends = sorted((LABELS[part].min(), LABELS[part].max()) for part in parts)
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(ends))
    assert {len(part) for part in parts} == {857, 858}


def test_within_a_label_the_order_is_random():
    zeros = np.zeros(1000, dtype=int)
    part = Shards(1).assign(zeros, 1, 2, seed=0).train[0]
    assert abs(part.mean() - 499.5) < 5 * 1000 / np.sqrt(12 * 500)
    assert np.diff(part).max() > 1


def test_fl_fdms_general_setting_leaves_undrawn_shards_out():
    labels = np.arange(50_000) % 10
    for partition, size in ((Shards(2, 200), 500), (Shards(1, 100), 500), (Shards(5, 500), 500)):
        parts = partition.assign(labels, 10, 20, seed=0).train
        assert {len(part) for part in parts} == {size}
        assert all(len(classes) <= partition.per_client for classes in classes_of(parts, labels))


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Shards(0), "per_client must be at least 1, not 0"),
        (lambda: Shards(2, 30).assign(LABELS, 10, 20, 0), "20 clients draw 40 shards in all, but 6000 samples .* 30"),
        (lambda: Shards(400).assign(LABELS, 10, 20, 0), "20 clients draw 8000 shards in all, but 6000 samples"),
        (lambda: Shards(2, 7000).assign(LABELS, 10, 20, 0), r"Shards\(2 of 7000\).* cut into 7000; change shards"),
    ],
)
def test_impossible_shards_are_refused_with_the_numbers(make, sentence):
    with pytest.raises(UserError, match=sentence):
        make()
