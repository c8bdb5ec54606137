import numpy as np
import pytest

from dfl_lightning.data import Dirichlet
from dfl_lightning.data.partitions.dirichlet import divide
from dfl_lightning.utils.errors import UserError

LABELS = np.arange(5000) % 10


def class_shares(parts, labels=LABELS, num_classes=10):
    return np.stack([np.bincount(labels[part], minlength=num_classes) / len(part) for part in parts])


def test_equal_sizes_gives_every_client_the_same_number_of_images():
    parts = Dirichlet(0.1).assign(LABELS, 10, 30, seed=0).train
    assert {len(part) for part in parts} == {5000 // 30}


def test_equal_sizes_follow_the_prior_while_no_class_runs_out():
    # Two clients of 10 have 250 images each of plenty: their shares are multinomial around the prior.
    labels = np.arange(100_000) % 10
    assignment = Dirichlet(5.0).assign(labels, 10, 400, seed=1)
    deviation = class_shares(assignment.train, labels) - assignment.prior
    assert np.abs(deviation.mean(0)).max() < 0.01
    assert np.corrcoef(class_shares(assignment.train, labels).ravel(), assignment.prior.ravel())[0, 1] > 0.9


def test_the_prior_has_the_variance_of_a_dirichlet_distribution():
    alpha, classes = 0.5, 10
    prior = Dirichlet(alpha).assign(np.arange(50_000) % classes, classes, 2000, seed=0).prior
    np.testing.assert_allclose(prior.sum(1), 1)
    mean = 1 / classes
    np.testing.assert_allclose(prior.var(), mean * (1 - mean) / (classes * alpha + 1), rtol=0.05)


def test_small_alpha_means_few_classes_and_large_alpha_means_all():
    few = class_shares(Dirichlet(0.05).assign(LABELS, 10, 20, seed=0).train)
    all_ = class_shares(Dirichlet(1000.0).assign(LABELS, 10, 20, seed=0).train)
    assert few.max(1).mean() > 0.6
    assert all_.max(1).mean() < 0.2


def test_a_scarce_class_is_divided_completely_among_many_clients():
    # Class 1 has 30 images, 40 clients of 25 ask for about half of 1000.
    labels = np.repeat([0, 1], [970, 30])
    parts = Dirichlet(100.0).assign(labels, 2, 40, seed=0).train
    held = np.array([labels[part].sum() for part in parts])
    assert held.sum() == 30
    assert held.max() <= 4
    assert {len(part) for part in parts} == {25}


def test_an_extreme_alpha_still_fills_every_client():
    parts = Dirichlet(1e-3).assign(LABELS, 10, 50, seed=0).train
    assert {len(part) for part in parts} == {100}


def test_per_class_gives_unequal_sizes_above_the_minimum():
    sizes = np.array([len(part) for part in Dirichlet(0.5, "per_class", 20).assign(LABELS, 10, 20, seed=0).train])
    assert sizes.sum() == 5000
    assert sizes.min() >= 20
    assert sizes.std() > 20


def test_per_class_gives_no_more_to_a_full_client():
    # Sorted in the order of classes: before its last class each client was below the mean size.
    parts = Dirichlet(0.3, "per_class", 1).assign(LABELS, 10, 10, seed=4).train
    for part in parts:
        counts = np.bincount(LABELS[part], minlength=10)
        before_last = counts[: np.flatnonzero(counts)[-1]].sum()
        assert before_last < 500


def test_impossible_per_class_draws_are_refused_with_a_remedy():
    with pytest.raises(
        UserError, match=r"Dirichlet\(0.1, per class\).* 100 samples among 10 clients .* 11 .*lower min_size"
    ):
        Dirichlet(0.1, "per_class", min_size=11).assign(np.arange(100) % 10, 10, 10, seed=0)


def test_divide_is_within_one_of_the_exact_shares():
    rng = np.random.default_rng(0)
    for _ in range(200):
        share = rng.dirichlet(np.full(7, 0.3)) * (rng.random(7) > 0.3)
        if share.sum() == 0:
            continue
        total = int(rng.integers(0, 50))
        counts = divide(total, share)
        assert counts.sum() == total
        assert (counts >= 0).all()
        assert np.abs(counts - total * share / share.sum()).max() < 1 + 1e-6
        assert not counts[share == 0].any()
