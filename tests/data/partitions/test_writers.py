import numpy as np
import pytest
import torch

from dfl_lightning.data import ByWriter, Digits, FederatedData, Source
from dfl_lightning.utils.errors import UserError

SIZES = {"ann": 30, "bob": 4, "cyd": 25, "dee": 40, "eve": 20}
"""Training images of each writer; classes 0 to 4 in turn."""

TESTS = {"ann": 5, "bob": 5, "cyd": 0, "dee": 10, "eve": 6}


class Letters(FederatedData):
    """Images of five writers, shuffled; whose training and test images are the same writers' or others'."""

    own_tests = True

    def load(self):
        def part(sizes, first, seed):
            writers = np.repeat(np.arange(first, first + len(sizes)), list(sizes.values()))
            labels = np.concatenate([np.arange(size) % 5 for size in sizes.values()])
            order = np.random.default_rng(seed).permutation(len(writers))
            images = torch.arange(len(writers), dtype=torch.float32).view(-1, 1)
            return images, torch.from_numpy(labels[order]), torch.from_numpy(writers[order])

        images, labels, writers = part(SIZES, 0, 0)
        test_images, test_labels, test_writers = part(TESTS, 0 if self.own_tests else 5, 1)
        names = tuple(SIZES) if self.own_tests else (*SIZES, "x", "y", "z", "u", "v")
        return Source(
            "Letters",
            images,
            labels,
            5,
            test_images,
            test_labels,
            writers=writers,
            test_writers=test_writers,
            writer_names=names,
        )


class LettersOfOthers(Letters):
    own_tests = False


def drawn(kind=Letters, **options):
    data = kind(**{"num_clients": 3, "partition": ByWriter(), **options})
    data.setup()
    return data


def test_a_client_has_all_images_of_one_writer():
    data = drawn()
    assert data.client_split.writers.tolist() == ["ann", "dee", "eve"]  # bob wrote little, cyd has no test image
    assert data.client_split.test_official
    for name, train, test in zip(
        data.client_split.writers, data.client_split.train, data.client_split.test, strict=True
    ):
        number = list(SIZES).index(name)
        assert train.tolist() == np.flatnonzero(data.source.writers == number).tolist()
        assert test.tolist() == np.flatnonzero(data.source.test_writers == number).tolist()


def test_foreign_test_sets_hold_out_a_quarter_of_own_images():
    data = drawn(LettersOfOthers, num_clients=4)
    assert data.client_split.writers.tolist() == ["ann", "cyd", "dee", "eve"]
    assert not data.client_split.test_official
    assert data.clients.sizes("test").tolist() == [7, 6, 10, 5]
    assert data.clients.sizes("train").tolist() == [23, 19, 30, 15]
    assert len(data.clients.global_test) == sum(TESTS.values())


def test_a_test_fraction_is_held_out_of_each_writers_images():
    assert drawn(test_fraction=0.5).clients.sizes("test").tolist() == [15, 20, 10]
    assert drawn(LettersOfOthers, num_clients=4, test_fraction=0).clients.sizes("train").tolist() == [30, 25, 40, 20]


def test_writers_are_drawn_at_random_and_more_clients_extend_them():
    seen = set()
    for seed in range(60):
        one, two = (set(drawn(num_clients=m, seed=seed).client_split.writers) for m in (1, 2))
        assert one < two < {"ann", "dee", "eve"}
        seen |= {*one}
    assert seen == {"ann", "dee", "eve"}


def test_clients_with_some_classes_are_tested_on_these_only():
    data = drawn(partition=ByWriter(min_samples=8, classes=2), num_clients=3)
    chosen = []
    for train, test in zip(data.client_split.train, data.client_split.test, strict=True):
        kept = np.unique(data.source.labels[train])
        assert len(kept) == 2
        assert set(data.source.test_labels[test].tolist()) <= set(kept.tolist())
        chosen.append(tuple(kept))
        writers, labels = data.source.writers.numpy(), data.source.labels.numpy()
        everything = np.flatnonzero((writers == writers[train[0]]) & np.isin(labels, kept))
        assert train.tolist() == everything.tolist()
    assert len(set(chosen)) > 1


def test_the_minimum_of_images_applies_after_leaving_classes_out():
    with pytest.raises(UserError, match=r"ByWriter\(2 classes\): 3 clients, but only 0 of the 5 .* 20 .* of 2 classes"):
        drawn(partition=ByWriter(min_samples=20, classes=2))


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: ByWriter(0), "min_samples must be at least 1, not 0"),
        (lambda: ByWriter(classes=0), "classes must be at least 1 or null, not 0"),
        (
            lambda: drawn(num_clients=4),
            "but only 3 of the 5 natural clients of Letters have 20 training samples and a test sample; lower",
        ),
        (
            lambda: drawn(LettersOfOthers, num_clients=5),
            "only 4 of the 5 natural clients of Letters have 20 training samples; lo",
        ),
        (lambda: Digits(partition=ByWriter()).setup(), "these data do not say whose each sample is; use data FEMNIST"),
    ],
)
def test_data_without_enough_writers_are_refused_with_the_numbers(make, sentence):
    with pytest.raises(UserError, match=sentence):
        make()
