"""`read_study`: a study's folder as tables and runs; `dfl-study report`: their page."""

import csv
import json
import shutil
import sys

import numpy as np
import pytest
import yaml

from dfl_lightning import UserError, read_run, read_study
from dfl_lightning.bench.study.cells.cell_state import state_of, write_failure
from dfl_lightning.bench.study.command import main
from dfl_lightning.bench.study.tables.grid import grid

SCORES = ("last", "best_round", "best_per_client", "best_val")
SMALL = """\
base:
  trainer: {max_rounds: 4, accelerator: cpu}
  model: {network: {class_path: MLP, init_args: {hidden: [4]}}, local_epochs: 1}
  selection: {class_path: Gossip, init_args: {k: 2}}
score: last
"""


def by_hand(folder):
    """Read the summaries of the finished runs, by the name of the cell's folder."""
    found = {}
    for file in folder.glob("cells/*/run/*/summary.json"):
        summary = json.loads(file.read_text())
        if summary["status"] == "finished":
            found[file.parents[2].name] = summary
    return found


@pytest.fixture(scope="module")
def trained(tmp_path_factory, in_this_process):
    """Run a real study of two seeds, in the folder in which the tests work."""
    folder = tmp_path_factory.mktemp("trained")
    data = {"class_path": "Digits", "init_args": {"num_clients": 6, "samples_per_client": 30, "val_fraction": 0.2}}
    content = {**yaml.safe_load(SMALL), "rows": {"Gossip": {}}, "columns": {"IID": {"data": data}}, "seeds": [0, 1]}
    (folder / "small.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        with in_this_process():
            assert main(["run", "small.yaml", "-j", "2"]) == 0
        yield folder / "studies" / "small"


def test_read_study_returns_the_numbers_of_its_files(trained, capsys):
    study = read_study(trained)
    assert repr(study) == f"StudyResults({str(trained)!r}, 2 of 2 cells done)"
    table, summaries = study.table, by_hand(trained)
    assert table["row"].tolist() == ["Gossip", "Gossip"]
    assert table["column"].tolist() == ["IID", "IID"]
    assert table["seed"].tolist() == [0, 1]
    assert table["state"].tolist() == ["done", "done"]
    for at, cell in enumerate(study.cells):
        summary = summaries[cell.folder.name]
        assert summary["seeds"]["run"] == cell.seed
        for name in SCORES:
            assert table[name][at] == summary["test_accuracy"][f"acc_{name}"] == cell.score(name), name
        assert table["seconds"][at] == summary["seconds"]["rounds"]
        assert table["rounds"][at] == summary["rounds"] == 4
        assert np.isnan(table["global_last"][at])  # there is no server
        run = read_run(next(cell.folder.glob("run/*")))
        assert cell.run.path == run.path
        np.testing.assert_array_equal(cell.run.clients["test_acc"], run.clients["test_acc"])
    assert study.cell("Gossip", "IID", 1) is study.cells[1]
    with pytest.raises(UserError, match="there is no cell Gossip, IID, seed 2;"):
        study.cell("Gossip", "IID", 2)


def test_a_folder_that_was_moved_reads_the_same(planned, pretend, tmp_path):
    pretend(planned().distinct()[0], 0.5)
    assert main(["status", "small.yaml"]) == 0
    before = read_study(tmp_path / "studies" / "small").table
    after = read_study(shutil.move(tmp_path / "studies" / "small", tmp_path / "elsewhere"))
    assert after.table["last"][0] == 0.5
    for name in before:
        np.testing.assert_array_equal(before[name], after.table[name])
    with pytest.raises(UserError, match="the cell has no run yet, its state is: waiting"):
        _ = after.cells[1].run


def test_unfinished_cells_have_a_state_and_no_numbers(planned, pretend, tmp_path):
    cells = planned().distinct()
    pretend(cells[0], 0.5)
    pretend(cells[1], 0.25, status="stopped")
    cells[2].folder.mkdir()
    write_failure(cells[2], "it diverged")
    assert main(["status", "small.yaml"]) == 0
    table = read_study(tmp_path / "studies" / "small").table
    assert table["state"].tolist() == ["done", "stopped", "failed", "waiting"]
    assert table["rounds"].tolist() == [4, 4, 0, 0]
    for name in (*SCORES, "seconds"):
        assert np.isnan(table[name][1:]).all(), name


def test_status_is_a_grid_of_rows_and_columns(planned, pretend, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    rows = {"Gossip": {}, "Local": {"selection.k": 0}, "Other": {"not_in_library": "Other of 2026"}}
    plan = planned(rows=rows, seeds=[0, 7], cells={"Local": {"rotated": None}})
    pretend(plan.cells["Gossip", "IID", 0], 0.5)
    pretend(plan.cells["Gossip", "IID", 7], status="stopped")
    plan.cells["Local", "IID", 7].folder.mkdir()
    write_failure(plan.cells["Local", "IID", 7], "it diverged")
    assert main(["status", "small.yaml"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "        IID             rotated",
        "Gossip  ✓‖              ··",
        "Local   ·✗              –",
        "Other   not in library  not in library",
        "",
        "✓ done  ‖ stopped  ✗ failed  · waiting  (a mark a seed: 0, 7)",
        "not in the library yet: Other of 2026",
        "Gossip, IID, seed 7: stopped at round 4 of 4",
        "Local, IID, seed 7: failed: it diverged",
        "6 cells in studies/small: 1 done, 1 stopped, 3 waiting, 1 failed",
    ]
    monkeypatch.setenv("COLUMNS", "28")  # a column at a time
    assert main(["status", "small.yaml"]) == 0
    assert capsys.readouterr().out.splitlines()[4:7] == ["", "        rotated", "Gossip  ··"]


def test_many_seeds_are_counted(planned, pretend):
    plan = planned(seeds=list(range(10)), columns={"IID": {}})
    for seed in range(3):
        pretend(plan.cells["Gossip", "IID", seed], 0.5)
    lines = list(grid(plan, {key: state_of(cell) for key, cell in plan.cells.items()}, 80))
    assert lines == ["        IID", "Gossip  3✓ 7·", "Local   10·", "", "✓ done  · waiting"]


def test_scaled_study_is_distinguished_from_a_whole_one(planned, pretend, tmp_path):
    whole, half = planned(), planned(0.5)
    (tmp_path / "studies" / "small" / "cells").mkdir(parents=True)
    for plan, accuracy in ((half, 0.013), (whole, 0.75)):
        for cell in plan.distinct():  # 100 * 0.013 / 100 is another number
            pretend(cell, accuracy)
        words = ["status", "small.yaml"] + (["--scale", "0.5"] if plan is half else [])
        assert main(words) == 0
    table = read_study(tmp_path / "studies" / "small").table
    assert table["scale"].tolist() == [1.0] * 4 + [0.5] * 4
    assert table["last"].tolist() == [0.75] * 4 + [0.013] * 4
    assert read_study(tmp_path / "studies" / "small").cell("Local", "IID", 0, 0.5).score() == 0.013


def test_frame_returns_the_table_or_asks_for_pandas(planned, pretend, tmp_path, monkeypatch):
    pretend(planned().distinct()[0], 0.5)
    assert main(["status", "small.yaml"]) == 0
    study = read_study(tmp_path / "studies" / "small")
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UserError, match="pip install pandas"):
        study.frame()

    class Pandas:
        DataFrame = dict

    monkeypatch.setitem(sys.modules, "pandas", Pandas)
    assert {name: column.tolist() for name, column in study.frame().items()}["state"] == ["done"] + 3 * ["waiting"]


def test_other_folders_are_refused_and_damage_is_named(planned, pretend, tmp_path):
    with pytest.raises(UserError, match=r"no cells\.csv in there; give a study's folder"):
        read_study(tmp_path)
    pretend(planned().distinct()[0], 0.5)
    assert main(["status", "small.yaml"]) == 0
    file = tmp_path / "studies" / "small" / "cells.csv"
    text = file.read_text()
    for damage in (text.replace(",0,", ",x,"), text.replace("seed", "sed"), text + "a,b\n", ""):
        file.write_text(damage)
        with pytest.raises(UserError, match=r"cells\.csv: damaged \("):
            read_study(file.parent)


def test_the_page_of_a_study_is_made_of_its_runs(trained, tmp_path, capsys, monkeypatch):
    pytest.importorskip("altair", reason="the extra `report` is not installed")
    monkeypatch.chdir(trained.parents[1])
    monkeypatch.setattr("time.strftime", lambda form: "2026-11-27 12:00")  # the minute may change between the pages
    assert main(["report", "small.yaml"]) == 0
    page = trained / "report.html"
    assert capsys.readouterr().out.startswith("studies/small/report.html (")
    text = page.read_text(encoding="utf-8")
    assert "Gossip" in text
    assert "<h1>small</h1>" in text
    assert "<code>dfl-study run small.yaml</code>" in text
    mean = np.mean([s["test_accuracy"]["acc_last"] for s in by_hand(trained).values()])
    assert f"{100 * mean:.1f}" in text
    assert main(["report", "small.yaml", "--out", str(tmp_path / "page.html")]) == 0
    assert (tmp_path / "page.html").read_bytes() == page.read_bytes()


def test_a_study_without_a_finished_cell_has_no_page(study_of, capsys):
    study_of()
    assert main(["report", "small.yaml"]) == 2
    sentence = "no cell is done yet; train them with: dfl-study run small.yaml"
    assert f"studies/small: {sentence}\n" in capsys.readouterr().err
    assert main(["report", "small.yaml", "--folder", "else where", "--scale", "0.5"]) == 2
    assert f"else where: {sentence} --folder 'else where' --scale 0.5\n" in capsys.readouterr().err


def test_the_command_after_further_seeds_is_about_the_same_folder(study_of, capsys):
    study_of()
    assert main(["add-seeds", "small.yaml", "1", "--folder", "there"]) == 0
    assert capsys.readouterr().out.endswith("train them with: dfl-study run small.yaml --folder there\n")


def test_places_of_several_columns_are_distinguished(planned, pretend, tmp_path, monkeypatch):
    pytest.importorskip("altair", reason="the extra `report` is not installed")
    from dfl_lightning.bench.report import writing

    plan = planned()
    for cell in plan.distinct():
        pretend(cell, 0.5)
    found, about = [], {}
    monkeypatch.setattr(
        writing, "write_page", lambda named, file, **more: found.extend(named) or about.update(more) or _written(file)
    )
    assert main(["report", "small.yaml"]) == 0
    assert [name for name, _ in found] == ["Gossip", "Gossip", "Local", "Local"]
    assert about.pop("opening").func.__name__ == "opening"
    study_file = about.pop("study_file")
    assert (study_file.name, study_file.text) == ("small.yaml", (tmp_path / "small.yaml").read_text())
    assert about == {"columns": 2 * ["IID", "rotated"], "study": plan.title, "command": "dfl-study run small.yaml"}
    assert [path.parents[1] for _, path in found] == [cell.folder.relative_to(tmp_path) for cell in plan.cells.values()]


def _written(file):
    file.write_text("")
    return file


def test_the_file_of_cells_is_plain_csv(planned, pretend, tmp_path):
    cells = planned(rows={"A, or B": {}, "Local": {"selection.k": 0}}).distinct()
    pretend(cells[0], 0.5)
    assert main(["status", "small.yaml"]) == 0
    with open(tmp_path / "studies" / "small" / "cells.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["row"], row["column"], row["seed"], row["scale"]) for row in rows][:2] == [
        ("A, or B", "IID", "0", "1.0"),
        ("A, or B", "rotated", "0", "1.0"),
    ]
    assert (tmp_path / "studies" / "small" / rows[0]["folder"]).is_dir()
