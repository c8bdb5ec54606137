"""Every single seed on the page: in the tables, the charts and their CSV, against the files of the runs."""

import re

import numpy as np
import pytest

pytest.importorskip("altair", reason="the extra `report` is not installed")

from dfl_lightning import read_run
from dfl_lightning.bench import report
from dfl_lightning.bench.report.methods import find_methods
from dfl_lightning.bench.report.page.assemble import page
from dfl_lightning.bench.report.page.contents import spread
from dfl_lightning.bench.report.page.contents.seeds import about_lead
from dfl_lightning.bench.report.page.pictures import rows_of

LEVELS = {"Ours": [0.9, 0.62, 0.61], "Theirs": [0.7, 0.64, 0.63], "Third": [0.5, 0.5, 0.5]}
"""The lead of the first is due to its seed 0."""


@pytest.fixture(scope="module")
def methods(tmp_path_factory, make_run):
    folder, runs = tmp_path_factory.mktemp("runs"), []
    for name, levels in LEVELS.items():
        for seed, level in enumerate(levels):
            accuracy = np.array([[level - 0.2], [level]]) + np.linspace(-0.04, 0.04, 5)
            config = {"selection": {"class_path": name}}
            received = 1e6 * (1 + seed)
            runs.append(make_run(folder / f"{name} {seed}", accuracy, seed=seed, config=config, received=received))
    return find_methods([read_run(run) for run in runs])


def test_the_table_of_seeds_has_the_means_of_the_files(methods):
    text = page(methods)
    table = re.search(r"<table class='by-seed'>(.*?)</table>", text, re.DOTALL)[1]
    rows = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in re.findall(r"<tr>(.*?)</tr>", table, re.DOTALL)]
    plain = [[re.sub("<[^>]*>", " ", cell).replace("−", "-").split() for cell in row] for row in rows]
    assert [row[0][0] for row in plain[1:]] == ["Ours", "Theirs", "Third"]
    for row in plain[1:]:
        levels, best = LEVELS[row[0][0]], LEVELS["Ours"]
        assert [float(cell[0]) for cell in row[1:4]] == pytest.approx([100 * level for level in levels])
        if row[0][0] != "Ours":
            gaps = [100 * (a - b) for a, b in zip(levels, best, strict=True)]
            assert [float(cell[1]) for cell in row[1:4]] == pytest.approx(gaps, abs=0.05)
            without = [np.mean(np.delete(gaps, seed)) for seed in range(3)]
            assert [float(row[4][0]), float(row[4][2])] == pytest.approx([min(without), max(without)], abs=0.06)
    assert text.count("<svg class='dots'") == 3
    top = text[text.index("<p class='lead'>") : text.index("</header>")]
    assert "<li>Ours&#39;s lead is due to one seed: without seed 0 Theirs has it.</li>" in top
    said = "that Ours has the highest mean is due to one seed, since without seed 0 Theirs has it."
    assert f"Leave one seed out: {said}" in text
    assert "not corrected for the number of methods" in text


def test_dots_have_the_scores_of_their_seeds(methods):
    text = page(methods)
    for name, levels in LEVELS.items():
        row = re.search(rf'<tr data-method="{name}">(.*?)</tr>', text, re.DOTALL)[1]
        said = "; ".join(f"seed {seed}: {100 * level:.1f}" for seed, level in enumerate(levels))
        assert f'aria-label="{said}"' in row
        assert f"<title>{said}</title>" in row
        places = [4 + 76 * (level - 0.5) / 0.4 for level in levels]
        assert [float(at) for at in re.findall(r"cx='([\d.]+)'", row)] == pytest.approx(places, abs=0.05)
    assert "<small class='of-dots'>50.0 to 90.0</small>" in text


def test_heads_of_the_verdict_open_the_tables_below(methods, tmp_path, open_page, monkeypatch):
    monkeypatch.setattr(spread, "MOST_SHOWN", 2)  # the spread is folded
    runs = [f"{method.name}={run.path}" for method in methods for run in method.runs]
    seen = open_page(report.write_report(runs, tmp_path / "page.html"))
    for name, of in (("worst tenth", "#spread-1"), ("seeds", "#each-seed-1")):
        fold = seen.page.locator(of)
        assert fold.get_attribute("open") is None
        seen.page.locator("table.verdict").get_by_role("link", name=name).click()
        assert fold.get_attribute("open") == ""
        assert fold.locator("table").is_visible()
    note = seen.page.locator("#spread-1 .note").inner_text()
    assert "the worst tenth in the table above is the mean over the worst 1 of 5 clients." in note
    assert seen.console == []


def test_lead_of_all_seeds_is_said_with_its_smallest_distance(methods):
    said = about_lead([method for method in methods if method.name != "Theirs"])
    assert said == (
        "Leave one seed out: Ours keeps the highest mean whichever of the 3 common seeds it is. "
        "Its lead is smallest without seed 0: 11.5 points over Third."
    )
    assert about_lead(methods[:1]) == ""


def test_charts_and_their_csv_have_each_seed(methods):
    curves = rows_of(report.learning_curves(methods).to_dict())
    last = {row["method"]: row for row in curves}
    front = {row["method"]: row for row in rows_of(report.accuracy_front(methods).to_dict())}
    by_bytes = {row["method"]: row for row in rows_of(report.accuracy_by_bytes(methods).to_dict())}
    ranks = [row for row in rows_of(report.sorted_clients(methods).to_dict()) if row["rank"] == 1]
    for name, levels in LEVELS.items():
        for seed, level in enumerate(levels):
            field = f"seed {seed}"
            assert last[name][field] == front[name][field] == by_bytes[name][field] == pytest.approx(100 * level)
            assert front[name][f"cost of {field}"] == 2 * (1 + seed)
        best = next(row for row in ranks if row["method"] == name)
        assert [best[f"seed {seed}"] for seed in range(3)] == pytest.approx([100 * level + 4 for level in levels])
    found = rows_of(report.found_over_rounds(methods, "train_loss", "loss", share=False).to_dict())
    assert {row[f"seed {seed}"] for row in found if row["round"] == 2 for seed in range(3)} == {0.5}


def test_methods_with_one_seed_have_no_columns_of_seeds(methods, tmp_path, make_run):
    run = read_run(make_run(tmp_path / "one", np.full((2, 3), 0.5)))
    assert not [name for row in rows_of(report.learning_curves([run]).to_dict()) for name in row if "seed" in name]
    assert "by-seed" not in page(find_methods([run]))[:200_000].partition("<main>")[2]
