"""Chance level, the accuracy of one class for all test samples: the sentences on it."""

import numpy as np
import pytest

pytest.importorskip("altair", reason="the extra `report` is not installed")

from dfl_lightning import read_run
from dfl_lightning.bench.report.chance_level import chance_level
from dfl_lightning.bench.report.methods import find_methods
from dfl_lightning.bench.report.page.assemble import page
from dfl_lightning.bench.report.page.sentences.said import about_chance, about_conditions, qualified

COUNTS = [[80, 20, 0], [10, 30, 60]]
"""Test samples of three classes of two clients: of the mean shares, 45, 25 and 30 %, the first is the largest."""


@pytest.fixture
def made(tmp_path, make_run):
    """Make a method with a run for each seed, whose clients all end at that seed's accuracy."""

    def make(name, accuracies, counts=COUNTS, **more):
        runs = []
        for seed, accuracy in enumerate(accuracies):
            folder = tmp_path / f"{name}{seed}"
            config = {"selection": {"class_path": f"mine.{name}"}, **more.get("config", {})}
            clients = 2 if counts is None else len(counts)
            last = [[0.9] * clients, [accuracy] * clients]
            options = {key: value for key, value in more.items() if key != "config"}
            make_run(folder, last, seed=seed, config=config, **options)
            if counts is not None:
                with np.load(folder / "split.npz") as file:
                    np.savez(folder / "split.npz", **file, test_counts=np.array(counts, dtype=np.int32))
            runs.append(read_run(folder))
        return runs

    return make


def test_chance_level_is_the_best_single_class_for_all_clients(made):
    assert chance_level(find_methods(made("A", [0.5]))) == pytest.approx(0.45)
    assert chance_level(find_methods(made("B", [0.5], counts=None))) is None


def test_chance_level_excludes_adversaries_and_untested_clients(made):
    counts = [[0, 0, 9], [8, 2, 0], [0, 0, 0]]
    found = find_methods(made("A", [0.5], counts=counts, adversaries=[True, False, False]))
    assert chance_level(found) == pytest.approx(0.8)


def test_verdict_names_methods_at_chance_level(made):
    """One run of 2 x 100 samples: the standard error of chance is sqrt(0.45 * 0.55 / 200) = 3.5 points."""
    assert about_chance(find_methods(made("A", [0.51]))) == ["A ends at 51.0 %, not above chance level (45.0 %)."]
    assert about_chance(find_methods(made("B", [0.53]))) == []
    assert about_chance(find_methods(made("C", [0.51], counts=None))) == []


def test_verdict_names_methods_not_clearly_above_chance_level(made):
    """The mean of 50 and 80 % is 20 points above the level, and two standard errors are 2 * 15 points."""
    said = ["The seeds do not show that A is above chance level (45.0 %)."]
    assert about_chance(find_methods(made("A", [0.5, 0.8]))) == said
    assert about_chance(find_methods(made("B", [0.6, 0.8]))) == []  # 25 points against 20
    assert about_chance(find_methods(made("C", [0.4, 0.51]))) == ["C ends at 45.5 %, not above chance level (45.0 %)."]


def test_verdict_names_conditions_in_which_methods_differ(made):
    half = {"dropout": {"class_path": "RandomDropout", "init_args": {"rate": 0.5}}}
    methods = find_methods([*made("A", [0.9]), *made("B", [0.8], config=half)])
    (words,) = about_conditions(methods)
    assert words == "Conditions differ, too, not only methods: dropouts: none (A), RandomDropout: rate = 0.5 (B)."
    assert qualified(methods)[-1] == words
    html = page(methods, drawn=[])
    assert 0 < html.index(words) < html.index("<table class='verdict'>")
    assert about_conditions(find_methods([*made("C", [0.9]), *made("D", [0.8])])) == []


def test_lead_names_long_conditions_without_their_values(made):
    more = {"dropout": {"class_path": "RandomDropout", "init_args": {"rate": 0.5}}, "trainer": {"precision": "b" * 160}}
    methods = find_methods([*made("A", [0.9]), *made("B", [0.8], config=more)])
    assert about_conditions(methods, brief=True) == [
        "Conditions differ, too, not only methods: precision and dropouts."
    ]
