"""The spread of the clients' scores next to the verdict, against numpy and the files of the runs."""

import re

import numpy as np
import pytest

pytest.importorskip("altair", reason="the extra `report` is not installed")

from dfl_lightning import read_run
from dfl_lightning.bench.report.methods import find_methods
from dfl_lightning.bench.report.page.assemble import page
from dfl_lightning.bench.report.page.contents import spread
from dfl_lightning.bench.report.page.contents.spread import spread_table, worst_of


@pytest.fixture(scope="module")
def runs(tmp_path_factory, make_run):
    folder, rng, found = tmp_path_factory.mktemp("runs"), np.random.default_rng(0), {}
    for name, low in (("Ours", 0.6), ("Theirs", 0.2)):
        for seed in (0, 1):
            scores = rng.uniform(low, 0.95, (2, 15))
            config = {"selection": {"class_path": name}}
            found[name, seed] = make_run(folder / f"{name} {seed}", scores, seed=seed, config=config)
    return found


def test_numbers_are_means_over_seeds_of_percentiles(runs):
    text = page(find_methods([read_run(run) for run in runs.values()]))
    part = text[text.index("Spread over clients, %") :]
    assert "Means over seeds of the numbers of each run." in part[:400]
    rows = [re.findall(r"<td>([^<]*)</td>", row) for row in re.findall(r"<tr>(.*?)</tr>", part, re.DOTALL)[1:3]]
    for name, cells in zip(("Ours", "Theirs"), rows, strict=True):
        last = [100 * np.load(runs[name, seed] / "clients.npz")["test_acc"][-1] for seed in (0, 1)]
        kinds = (np.min, lambda x: np.sort(x)[1] + 0.4 * np.diff(np.sort(x))[1], np.median, np.max)
        expected = [np.mean([kind(scores) for scores in last]) for kind in kinds]
        deviation = np.mean([np.sqrt(((scores - scores.mean()) ** 2).sum() / 15) for scores in last])
        assert list(map(float, cells)) == pytest.approx([*expected, deviation], abs=0.051)
    assert text.index("table class='verdict'") < text.index("Spread over clients") < text.index('id="learning"')


def test_table_of_many_methods_is_folded(runs, monkeypatch):
    methods = find_methods([read_run(run) for run in runs.values()])
    assert spread_table(methods)["is_open"]
    monkeypatch.setattr(spread, "MOST_SHOWN", 1)
    assert not spread_table(methods)["is_open"]


def test_worst_tenth_says_how_many_clients_it_is(runs, tmp_path, make_run):
    found = [read_run(run) for run in runs.values()]
    text = page(find_methods(found))
    assert "the mean over the worst 2 of 15 clients." in text  # a tenth of 15, rounded up
    assert "worst tenth</a><small>2 of 15 clients, %</small>" in text
    fewer = make_run(tmp_path / "run", np.full((2, 12), 0.5), seed=2, config={"selection": {"class_path": "Ours"}})
    assert worst_of(find_methods(found)) == "2 of 15 clients"
    assert worst_of(find_methods([*found, read_run(fewer)])) == ""
