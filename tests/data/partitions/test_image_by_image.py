"""Dirichlet's flavour image_by_image, against its law in closed form and against a plain loop over images."""

import numpy as np
import pytest
import torch

from dfl_lightning.data import Dirichlet, Source
from dfl_lightning.data.partitions.dirichlet import draw_equal_sizes
from dfl_lightning.data.partitions.image_by_image import draw_image_by_image
from dfl_lightning.data.splits.split import draw_split

LABELS = np.arange(5000) % 10


def law(prior, left, needed, counts=None, chance=1.0, found=None):
    """The chance of each table of counts, by following all ways in which images can be drawn."""
    counts = np.zeros(prior.shape, dtype=int) if counts is None else counts
    found = {} if found is None else found
    waiting = [i for i, n in enumerate(needed) if n]
    if not waiting:
        key = tuple(counts.ravel())
        found[key] = found.get(key, 0.0) + chance
        return found
    for i in waiting:
        weights = prior[i] * (np.array(left) > 0)
        for c in np.flatnonzero(weights):
            after, fewer, more = list(left), list(needed), counts.copy()
            after[c] -= 1
            fewer[i] -= 1
            more[i, c] += 1
            law(prior, after, fewer, more, chance / len(waiting) * weights[c] / weights.sum(), found)
    return found


@pytest.mark.parametrize("available", [[2, 2, 2], [1, 4, 1], [6, 6, 6]])
def test_tables_of_counts_have_the_chances_of_the_process(available):
    prior = np.array([[0.7, 0.2, 0.1], [0.5, 0.1, 0.4]])
    chances = law(prior, available, [3, 3])
    assert sum(chances.values()) == pytest.approx(1)
    rng, draws = np.random.default_rng(0), 6000
    seen = {}
    for _ in range(draws):
        key = tuple(draw_image_by_image(prior, np.array(available), 3, rng).ravel())
        seen[key] = seen.get(key, 0) + 1
    assert seen.keys() <= chances.keys()
    for key, chance in chances.items():
        assert abs(seen.get(key, 0) - draws * chance) < 4.5 * np.sqrt(draws * chance * (1 - chance)) + 1, key


def by_a_loop(prior, available, size, rng):
    """As public code does it: a random client, a random class of its prior, until there is an image for it."""
    left, needed, counts = available.copy(), np.full(len(prior), size), np.zeros(prior.shape, dtype=int)
    while needed.any():
        client = rng.integers(len(prior))
        if not needed[client]:
            continue
        needed[client] -= 1
        weights = prior[client] * (left > 0)
        c = rng.choice(len(left), p=weights / weights.sum())
        left[c] -= 1
        counts[client, c] += 1
    return counts


def mean_largest_share(draw, seed, times):
    """Return the share of the most frequent class at alpha 0.1, mean over clients and draws, and its error."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(times):
        prior = rng.dirichlet(np.full(10, 0.1), size=10)
        counts = draw(prior, np.full(10, 20), 20, rng)
        found.append((counts.max(1) / 20).mean())
    return np.mean(found), np.std(found) / np.sqrt(times)


def test_skew_equals_the_loops_and_is_below_equal_sizes():
    (loop, error), (ours, our_error) = (
        mean_largest_share(by_a_loop, 0, 150),
        mean_largest_share(draw_image_by_image, 1, 400),
    )
    assert abs(loop - ours) < 3 * np.hypot(error, our_error)
    more, its_error = mean_largest_share(draw_equal_sizes, 2, 400)
    assert more - ours > 5 * np.hypot(our_error, its_error)


def test_every_image_has_one_owner_and_every_client_equally_many():
    parts = Dirichlet(0.05, "image_by_image").assign(LABELS, 10, 30, seed=0).train
    assert {len(part) for part in parts} == {5000 // 30}
    assert len(np.unique(np.concatenate(parts))) == 30 * (5000 // 30)


@pytest.mark.parametrize("alpha", [1e-3, 0.1, 100.0])
@pytest.mark.parametrize("clients", [1, 50, 5000])
def test_every_image_is_assigned_at_any_skew(alpha, clients):
    """At 1e-3 priors have zeros, so that clients are left whose classes have all run out."""
    parts = Dirichlet(alpha, "image_by_image").assign(LABELS, 10, clients, seed=0).train
    assert {len(part) for part in parts} == {5000 // clients}


def test_the_seed_determines_the_split():
    one, again, other = (Dirichlet(0.3, "image_by_image").assign(LABELS, 10, 20, seed=s).train for s in (4, 4, 5))
    assert all(np.array_equal(a, b) for a, b in zip(one, again, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def test_test_classes_follow_the_shares_of_training_images():
    images = torch.zeros(2000, 1, 2, 2, dtype=torch.uint8)
    source = Source("S", images[:1000], torch.arange(1000) % 10, 10, images, torch.arange(2000) % 10)
    assignment = Dirichlet(0.1, "image_by_image").divide(source, 10, seed=0)
    split = draw_split(source, assignment, "P", None, 0.0, 100, None, 0)
    for own, tested in zip(split.train, split.test, strict=True):
        have, counts = (np.bincount(part % 10, minlength=10) for part in (own, tested))
        assert counts.tolist() == [-(-100 * n // have.sum()) for n in have]  # rounded up; none of a class it has not


def test_the_banner_names_the_method():
    assert Dirichlet(0.5, "image_by_image").describe() == "Dirichlet(0.5, image by image)"
