"""`dfl-report FOLDER`: the runs that folders of any kind hold."""

from pathlib import Path

import pytest

from dfl_lightning.bench.report.collection.finding import collect_runs
from dfl_lightning.utils.errors import UserError


def _run(folder: Path) -> Path:
    """Make the least that a run folder has."""
    folder.mkdir(parents=True)
    (folder / "metrics.csv").write_text("round,test_acc\n0,0.5\n")
    return folder


@pytest.fixture
def places(tmp_path):
    """Return a run, a study with two cells and an empty third one, and what must not be found."""
    places = {
        "run": _run(tmp_path / "runs" / "gossip" / "2"),
        "first": _run(tmp_path / "studies" / "five" / "cells" / "a_seed-0" / "run" / "1"),
        "second": _run(tmp_path / "studies" / "five" / "cells" / "b_seed-0" / "run" / "1"),
    }
    (tmp_path / "studies" / "five" / "cells" / "c_seed-0").mkdir()
    (tmp_path / "studies" / "five" / "cells.csv").write_text("row,column,seed,scale,folder,code\n")
    _run(places["run"] / "superseded" / "old")
    _run(tmp_path / "runs" / ".trash" / "1")
    (tmp_path / "runs" / "loop").symlink_to(tmp_path / "runs")
    return places


def test_runs_studies_cells_and_folders_of_them_are_mixed(tmp_path, places):
    run, first, second = places.values()
    assert collect_runs([("", str(tmp_path))]) == [("", run), ("", first), ("", second)]
    assert collect_runs([("", str(tmp_path / "studies" / "five"))]) == [("", first), ("", second)]
    cell = first.parent.parent
    assert collect_runs([("mine", str(cell)), ("", str(run))]) == [("mine", first), ("", run)]


def test_a_run_counts_once_and_keeps_its_given_name(tmp_path, places):
    run, first, second = places.values()
    words = [("", str(tmp_path)), ("mine", str(second)), ("", str(tmp_path / "studies"))]
    assert collect_runs(words) == [("", run), ("", first), ("mine", second)]


def test_folders_without_runs_are_refused_with_their_name(tmp_path, places):
    empty = tmp_path / "studies" / "five" / "cells" / "c_seed-0"
    for folder, sentence in (
        (empty, "c_seed-0: the folder holds no run, which has a metrics.csv; give a run folder or a folder of runs"),
        (tmp_path / "nowhere", "nowhere: the folder does not exist; give a run folder or a folder of runs"),
        (places["run"] / "metrics.csv", "metrics.csv: this is a file; give the folder of a run"),
    ):
        with pytest.raises(UserError, match=sentence):
            collect_runs([("", str(places["run"])), ("", str(folder))])


def test_the_page_of_a_folder_leaves_that_of_its_study(tmp_path, make_run):
    pytest.importorskip("altair", reason="the extra `report` is not installed")
    from dfl_lightning.bench.report.command import main

    for seed in (0, 1):
        make_run(tmp_path / "study" / "cells" / str(seed) / "run" / "1", [[0.5, 0.6 + seed / 10]])
    (tmp_path / "study" / "report.html").write_text("of the study")
    assert main([str(tmp_path / "study")]) == 0
    assert (tmp_path / "study" / "report.html").read_text() == "of the study"
    assert "<html" in (tmp_path / "study" / "runs.html").read_text(encoding="utf-8")
