import random
import re
from pathlib import Path

import pytest
from scipy.stats import hypergeom

from dfl_lightning.functional import (
    initialisation_probabilities,
    literal_initialisation_probabilities,
    panm_models_in_round,
    panm_models_received,
)


def close(actual, expected, digits):
    assert actual[: len(expected)] == pytest.approx(expected, abs=0.5001 * 10**-digits)


# --- confident neighbour initialisation -------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("setting", "candidates", "expected"),
    [
        ((100, 50, 10, 5), "all", (0.616700, 0.993658, 0.999966, 1.000000)),
        ((100, 50, 10, 5), "new", (0.616700, 0.995554, 0.999985, 1.000000)),
        ((100, 25, 10, 5), "all", (0.059226, 0.510766, 0.858005, 0.970702, 0.995092)),
        ((100, 25, 10, 5), "new", (0.059226, 0.538324, 0.880735, 0.978607, 0.996916)),
        ((20, 5, 4, 2), "all", (0.178277, 0.490133, 0.716912, 0.851693)),
        ((20, 5, 4, 2), "new", (0.178277, 0.527435, 0.763104, 0.888906)),
        ((5, 3, 2, 2), "all", (0.166667, 0.527778, 0.754630, 0.875772)),
        ((5, 3, 2, 2), "new", (0.166667, 1, 1, 1)),
        ((20, 3, 4, 3), "new", (0, 0, 0, 0, 0)),  # there are two friends only
        ((6, 6, 3, 2), "new", (1, 1, 1)),
    ],
)
def test_the_law_has_the_golden_values(setting, candidates, expected):
    close(initialisation_probabilities(*setting, rounds=10, candidates=candidates), expected, digits=6)


@pytest.mark.parametrize("candidates", ["new", "all"])
@pytest.mark.parametrize("setting", [(20, 5, 4, 2), (12, 6, 3, 3), (30, 8, 9, 5), (8, 5, 5, 3)])
def test_the_law_agrees_with_simulated_lists(setting, candidates):
    n, a, l, k = setting
    draw, runs = random.Random(0), 5_000
    done = [0] * 4
    for _ in range(runs):
        neighbours = []
        for t in range(4):
            pool = [j for j in range(1, n) if candidates == "all" or j not in neighbours]
            drawn = draw.sample(pool, min(l, len(pool)))
            # a perfect similarity: friends, clients 1 to a - 1, before all others
            neighbours = sorted({*neighbours, *drawn}, key=lambda j: (j >= a, draw.random()))[:k]
            done[t] += all(j < a for j in neighbours)
    for found, expected in zip(done, initialisation_probabilities(n, a, l, k, 4, candidates), strict=True):
        sigma = (expected * (1 - expected) / runs) ** 0.5
        assert abs(found / runs - expected) <= 3.5 * sigma + 1e-12


@pytest.mark.parametrize(("k", "l", "n"), [(5, 4, 100), (3, 9, 3)])
def test_too_few_samples_for_the_first_list_are_refused(k, l, n):
    with pytest.raises(ValueError, match=f"k={k} neighbours need"):
        initialisation_probabilities(n, 2, l, k, 3)


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ((100, 50, 10, 5), (0.61670010, 0.99529016, 0.99998314, 0.99999996, 1, 1, 1, 1, 1, 1)),
        (
            (100, 25, 10, 5),
            (*(0.05922607, 0.56051216, 0.89687841, 0.98355771, 0.99792041), 0.99977411, 0.99997796, 0.99999801),
        ),
        ((100, 25, 4, 2), (0.24660820, 0.61773931, 0.83169295, 0.93116509, 0.97309537)),
        ((100, 25, 4, 3), (0.04314819, 0.30101357, 0.58853153, 0.78783760, 0.89965111)),
        ((100, 50, 20, 10), (0.57874849, 0.99989566)),
        ((100, 50, 30, 15), (0.56036910, 0.99999909)),
        ((100, 50, 10, 3), (0.95093432, 0.99987364)),
    ],
)
def test_the_printed_theorem_has_the_golden_values(setting, expected):
    close(literal_initialisation_probabilities(*setting, rounds=10), expected, digits=8)


def test_the_printed_theorem_overestimates_with_too_few_friends():
    printed = literal_initialisation_probabilities(20, 3, 4, 3, 10)
    close(printed, (0, 0.0259, 0.1051, 0.2219, 0.3533, 0.4817, 0.5966, 0.6934, 0.7715, 0.8325), digits=4)


@pytest.mark.parametrize("setting", [(100, 50, 10, 5), (20, 5, 4, 2), (20, 5, 4, 6), (9, 4, 8, 3), (7, 1, 3, 2)])
def test_literal_probabilities_are_sums_of_hypergeometric_tails(setting):
    n, a, l, k = setting
    law = hypergeom(n - 1, a - 1, l)
    one, two = literal_initialisation_probabilities(*setting, rounds=2)
    assert one == pytest.approx(law.sf(k - 1), abs=1e-12)
    assert two == pytest.approx(sum(law.pmf(x) * law.sf(k - x - 1) for x in range(l + 1)), abs=1e-12)


def test_the_documented_table_agrees_with_the_functions():
    page = (Path(__file__).parents[2] / "docs" / "panm.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|$", page, re.MULTILINE)
    setting = (100, 25, 10, 5)
    columns = [
        [literal_initialisation_probabilities(*setting, 1)[0]] * 6,
        literal_initialisation_probabilities(*setting, 6),
        initialisation_probabilities(*setting, 6, candidates="all"),
        initialisation_probabilities(*setting, 6),
    ]
    assert [row[0] for row in rows] == ["1", "2", "3", "4", "5", "6"]
    assert [row[1:] for row in rows] == [tuple(f"{p:.4f}" for p in row) for row in zip(*columns, strict=True)]


# --- cost -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("l", "k", "models"), [(4, 2, 1118), (4, 3, 1397), (10, 5, 2795)])
def test_received_models_are_those_of_the_papers_table_6(l, k, models):
    assert panm_models_received(l, k, stage_one=100, stage_two=200, tau=10) == models
    assert sum(panm_models_in_round(t, l, k, stage_one=100, tau=10) for t in range(1, 301)) == models
