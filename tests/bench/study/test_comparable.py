"""Choice of the compared rows and seeds of a column, against all choices of rows."""

import itertools

import numpy as np
import pytest

from dfl_lightning.bench.stats.common_seeds import over_common_seeds


def cells_of_the_best_choice(values):
    """Return the largest number of cells, rows times common seeds, over all sets of rows."""
    sizes = []
    for number in range(1, len(values) + 1):
        for rows in itertools.combinations(values, number):
            sizes.append(number * len(set.intersection(*(set(values[row]) for row in rows))))
    return max(sizes)


@pytest.mark.parametrize("seed", range(10))
def test_stopped_rows_lose_no_comparable_cell(seed):
    """Cells are trained in the order of seeds, so that a row has the first ones."""
    rng = np.random.default_rng(seed)
    values = {row: {s: rng.random() for s in range(rng.integers(1, 7))} for row in "ABCDE"}
    found = over_common_seeds(values)
    assert len(found.means) * len(found.seeds) == cells_of_the_best_choice(values)
    assert set(found.means) | set(found.others) == set(values)
    for row, mean in found.means.items():
        assert mean == pytest.approx(np.mean([values[row][s] for s in found.seeds]))


@pytest.mark.parametrize("seed", range(10))
def test_compared_rows_have_all_compared_seeds(seed):
    rng = np.random.default_rng(seed)
    values = {row: {int(s): rng.random() for s in rng.permutation(6)[: rng.integers(0, 5)]} for row in "ABCDE"}
    found = over_common_seeds(values)
    assert found.seeds
    for row, own in values.items():
        assert (row in found.means) == (bool(own) and set(found.seeds) <= set(own))
    assert found.best == max(found.means, key=found.means.get)


def test_a_column_without_numbers_compares_nothing():
    assert over_common_seeds({}) is None
    assert over_common_seeds({"A": {}}) is None


def test_all_rows_with_the_best_mean_are_the_best():
    found = over_common_seeds({"A": {0: 100 * 0.57}, "B": {0: 57.0}, "C": {0: 56.0}, "D": {}})
    assert [found.is_best(row) for row in "ABCD"] == [True, True, False, False]
    assert found.best == "A"
    assert found.same_seeds
