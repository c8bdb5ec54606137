"""The orders of local training's samples: by ordinary numbers, in any company, and their distribution."""

import functools
import itertools
import math

import numpy as np
import pytest
from scipy import stats
from turns import in_turn

from dfl_lightning.engines.draws import Draws
from tests.helpers.orders import drawn_order

MANY, FEWER = 14_400, 2_160
LIKELY = 1e-3
"""Draws are named, so that a test of their distribution has the same outcome for ever; this one is no rare one."""


@functools.cache
def of_clients(samples, round=0, epoch=0, purpose="local", seed=0, clients=MANY):
    """Their orders in one epoch, [clients, samples]."""
    each = np.ones(clients, dtype=np.int64)
    orders = Draws(seed, purpose, round).orders(np.arange(clients), epoch * each, samples * each)
    return orders.reshape(clients, samples)


@functools.cache
def of_epochs(samples, owner=3, epochs=MANY):
    """One client's orders in the epochs of a round, [epochs, samples]."""
    each = np.ones(epochs, dtype=np.int64)
    return Draws(0, "local", 0).orders(owner * each, np.arange(epochs), samples * each).reshape(epochs, samples)


@functools.cache
def of_rounds(samples, owner=3, rounds=FEWER):
    """One client's orders in the first epochs of rounds, [rounds, samples]."""
    return np.stack([Draws(0, "local", round).orders_of(owner, 0, 1, samples)[0].numpy() for round in range(rounds)])


@functools.cache
def of_seeds(samples, seeds=FEWER):
    """One client's orders in the first rounds of runs, [seeds, samples]."""
    return np.stack([Draws(seed, "local", 0).orders_of(3, 0, 1, samples)[0].numpy() for seed in range(seeds)])


SEVERAL = {"clients": of_clients, "epochs": of_epochs, "rounds": of_rounds, "seeds": of_seeds}


def numbered(orders):
    """The number of each permutation, from 0 to n! - 1."""
    n = orders.shape[1]
    number = {order: place for place, order in enumerate(itertools.permutations(range(n)))}
    return np.array([number[tuple(order)] for order in orders.tolist()])


@pytest.mark.parametrize("seed", [0, 5, 2**63])
def test_orders_are_those_of_ordinary_whole_numbers(seed):
    owners, epochs = [0, 7, 7, 999_999, 2**31 - 1, 7], [0, 0, 1, 3, 2**32 - 1, 0]
    samples = [5, 12, 12, 1, 33, 0]
    flat = Draws(seed, "finetune", 4).orders(*map(np.array, (owners, epochs, samples)))
    words = zip(samples, owners, epochs, strict=True)
    expected = [drawn_order(n, seed, "finetune", 4, owner, epoch).tolist() for n, owner, epoch in words]
    assert flat.tolist() == [place for order in expected for place in order]


def test_an_order_depends_on_no_other_client_or_epoch():
    draws, rng = Draws(1, "local", 2), np.random.default_rng(0)
    owners, epochs, samples = rng.integers(0, 10**6, 200), rng.integers(0, 50, 200), rng.integers(0, 70, 200)
    together = np.split(draws.orders(owners, epochs, samples), samples.cumsum()[:-1])
    for place in (0, 1, 57, 199):
        alone = draws.orders_of(int(owners[place]), int(epochs[place]), 1, int(samples[place]))
        assert alone[0].tolist() == together[place].tolist()


@pytest.mark.parametrize(("several", "samples"), in_turn(SEVERAL, [2, 3, 4, 5, 6]))
def test_all_permutations_are_equally_likely(several, samples):
    counts = np.bincount(numbered(SEVERAL[several](samples)), minlength=math.factorial(samples))
    assert stats.chisquare(counts).pvalue > LIKELY


@pytest.mark.parametrize("several", SEVERAL)
def test_every_position_has_each_sample_equally_often(several):
    orders = SEVERAL[several](40)
    for place in (0, 1, 20, 39):
        assert stats.chisquare(np.bincount(orders[:, place], minlength=40)).pvalue > LIKELY


PAIRS = {
    **{f"neighbours among {name}": (lambda n, of=of: (of(n)[:-1], of(n)[1:])) for name, of in SEVERAL.items()},
    "a client's rounds": lambda n: (of_clients(n, round=0), of_clients(n, round=1)),
    "a client's epochs": lambda n: (of_clients(n, epoch=0), of_clients(n, epoch=1)),
    "client i's epoch 1 and client i + 1's epoch 0": lambda n: (of_clients(n, epoch=1)[:-1], of_clients(n)[1:]),
    "training and fine-tuning": lambda n: (of_clients(n), of_clients(n, purpose="finetune")),
    "two runs": lambda n: (of_clients(n, seed=0), of_clients(n, seed=1)),
    "clients 64 apart": lambda n: (of_clients(n)[:-64], of_clients(n)[64:]),
}


@pytest.mark.parametrize("pair", PAIRS)
def test_orders_are_independent_of_each_other(pair):
    """All pairs of permutations of 4 are equally likely, and ranks in longer ones are uncorrelated."""
    a, b = PAIRS[pair](4)
    table = np.bincount(24 * numbered(a) + numbered(b), minlength=576).reshape(24, 24)
    assert stats.chi2_contingency(table).pvalue > LIKELY
    a, b = PAIRS[pair](24)
    ranks = ((a - 11.5) * (b - 11.5)).sum(1) / (24 * (24**2 - 1) / 12)  # Spearman's; its variance is 1 / (n - 1)
    assert abs(ranks.mean()) * math.sqrt(23 * len(a)) < stats.norm.isf(LIKELY / 2)
