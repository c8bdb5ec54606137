"""Captions on single clients say how many test samples they have, and what chance alone does with so few."""

import numpy as np
import pytest

pytest.importorskip("altair", reason="the extra `report` is not installed")

from dfl_lightning.bench.report.methods import as_methods
from dfl_lightning.bench.report.page.sentences.chance import (
    about_losers,
    about_test_samples,
    deviation_by_chance,
    losers_by_chance,
)
from dfl_lightning.runs.reading import read_run


def test_the_deviation_by_chance_is_that_of_drawn_samples():
    drawn = np.random.default_rng(0).binomial(18, 0.7, 200_000) / 18
    assert deviation_by_chance(0.7, 18) == pytest.approx(drawn.std(), rel=0.01)


def test_equal_methods_lose_for_half_of_the_differing_clients():
    generator = np.random.default_rng(1)
    ours, theirs = generator.binomial(18, 0.7, (2, 400, 72))
    lost = (ours < theirs).sum(1).mean()
    assert np.mean([losers_by_chance(row) for row in ours - theirs]) == pytest.approx(lost, rel=0.02)
    assert 0.4 * 72 < lost < 0.5 * 72


def test_captions_give_test_samples_and_losers_by_chance(make_run, tmp_path):
    level = np.full((2, 4), 0.5)
    ours = make_run(tmp_path / "ours", level + np.array([0.1, 0.1, 0.0, -0.1]))
    alone = make_run(tmp_path / "alone", level, received=0.0, config={"selection": {"class_path": "Alone"}})
    methods = as_methods([read_run(ours), read_run(alone)])
    assert "half of the clients whose scores differ lose: on average 1.5 of 4 for " in about_losers(methods)
    assert about_losers([method for method in methods if not method.is_local]) == ""
    assert about_test_samples(methods) == (
        "A client has 10 test samples: by chance alone, equal clients differ by 15.8 points (standard deviation)."
    )
