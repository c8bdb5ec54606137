"""The lead without each seed, against means that numpy takes over every choice of seeds."""

import numpy as np
import pytest

from dfl_lightning.bench.stats.leave_one_out import leave_one_out


@pytest.mark.parametrize("lower_is_better", [False, True])
def test_leads_equal_those_of_all_choices_of_seeds(lower_is_better):
    rng, sign = np.random.default_rng(0), -1 if lower_is_better else 1
    for _ in range(200):
        table = rng.normal(0, 1, (4, 5)).round(3)
        values = {f"row {i}": dict(enumerate(row)) for i, row in enumerate(table.tolist())}
        found = leave_one_out(values, lower_is_better)
        for seed in range(5):
            order = np.sort(sign * np.delete(table, seed, axis=1).mean(1))[::-1]
            assert found.without[seed].margin == pytest.approx(order[0] - order[1], abs=1e-9)
            best = int(np.argmax(sign * np.delete(table, seed, axis=1).mean(1)))
            assert found.without[seed].first == f"row {best}"
        assert set(found.changes) == {s for s in range(5) if found.without[s].first != found.whole.first}


def test_equal_means_do_not_take_the_lead():
    found = leave_one_out({"B": {0: 1.0, 1: 2.0, 2: 1.0}, "A": {0: 1.0, 1: 1.0, 2: 1.0}})
    assert found.whole.first == found.without[1].first == "B"
    assert found.least[0] == 1
    assert not found.changes


@pytest.mark.parametrize("values", [{}, {"A": {0: 1.0, 1: 2.0}}, {"A": {0: 1.0}, "B": {0: 2.0}}])
def test_one_row_or_one_seed_leaves_nothing_out(values):
    assert leave_one_out(values) is None
