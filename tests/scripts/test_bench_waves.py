"""The benchmark of waves on a small federation: it counts what the clock says."""

from argparse import Namespace

import pytest


@pytest.mark.parametrize("method", ["uniform", "afind", "pairwise", "buffered"])
def test_trainings_and_waves_are_counted_after_the_first_round(method, load):
    bench = load("bench_waves")
    words = Namespace(clients=6, network="mlp", samples=8, epochs=1, rounds=2)
    laps = bench.measure(words, f"{method}, synchronous")
    assert (laps.trainings, laps.waves) == (12, 2)
    assert laps.seconds > 0
    uneven = bench.measure(words, f"{method}, spread 0.5")
    assert uneven.waves > 2
    assert uneven.trainings < 6 * uneven.waves
