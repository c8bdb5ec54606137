"""A cell's name depends on its settings alone; a class of the user's that has changed is said, and not averaged."""

import hashlib
import json
import os
import sys
from dataclasses import replace

import pytest
import yaml

from dfl_lightning import read_study
from dfl_lightning.bench.study.cells.cell_process import CellProcess
from dfl_lightning.bench.study.cells.cell_state import contradictions, state_of
from dfl_lightning.bench.study.cells.resolve import Resolver
from dfl_lightning.bench.study.command import main
from dfl_lightning.bench.study.file.study_file import read_study_file
from dfl_lightning.bench.study.plan import make_plan
from dfl_lightning.bench.study.tables.table import make_table
from dfl_lightning.bench.study.tuning import tuned_file, tuned_with_other_code
from dfl_lightning.utils.errors import UserError

MINE = """\
from dfl_lightning.callbacks import Gossip


class Mine(Gossip):
    def __init__(self, k: int = 2, sign: int = 1) -> None:
        super().__init__(k)
        self.sign = sign
"""
CHANGES = {
    "rows": {
        "Local": {"selection.k": 0},
        "Mine": {"selection": {"class_path": "own_mine.Mine", "init_args": {"k": 2}}},
    },
    "columns": {"IID": {"data.partition": "IID"}},
    "seeds": [0, 1],
}


@pytest.fixture
def forget(monkeypatch):
    """Make this process like a new one: it has imported nothing of the user's, and looks where it looked first."""
    path = [place for place in sys.path if "pytest-of" not in place]

    def forget():
        monkeypatch.setattr(sys, "path", list(path))
        sys.modules.pop("own_mine", None)

    forget()
    yield forget
    sys.modules.pop("own_mine", None)


@pytest.fixture
def plan_of(study_of, tmp_path, forget):
    """Plan a study with a class of the user's as a new process does."""
    (tmp_path / "own_mine.py").write_text(MINE)
    file = study_of(**CHANGES)
    folder = tmp_path / "studies" / "small"
    folder.mkdir(parents=True)

    def plan_of():
        forget()
        return make_plan(read_study_file(file), folder)

    return plan_of


def names(plan):
    return [cell.folder.name for cell in plan.distinct()]


def own(text):
    return {"own_mine": hashlib.sha256(text.encode()).hexdigest()}


@pytest.fixture
def trained(plan_of, pretend):
    """Plan the same study with runs in all its cells, made with the class as it is first."""
    for cell in plan_of().distinct():
        pretend(cell, 0.5 + 0.25 * cell.seed, **({"code": own(MINE)} if cell.row == "Mine" else {}))
    return plan_of


def words_of(plan):
    return {(cell.row, cell.seed): state_of(cell).word for cell in plan.distinct()}


# --- names ------------------------------------------------------------------------------------------------------------
def test_cell_name_does_not_need_the_class(plan_of, tmp_path, monkeypatch):
    first = plan_of()
    assert "own_mine" in sys.modules
    monkeypatch.setattr(os, "getcwd", lambda: str(tmp_path / "studies"))  # where the class is not found
    again = plan_of()
    assert "own_mine" not in sys.modules
    assert names(again) == names(first)
    assert (first.lost, again.lost) == ((), ("own_mine",))
    (note,) = [note for note in make_table(again).notes if "own_mine" in note]
    assert note.startswith("not found here, so that a change of it would not be noticed: the source of own_mine")


def test_missing_class_is_an_error(plan_of, tmp_path):
    plan_of()
    (tmp_path / "own_mine.py").unlink()
    (tmp_path / "studies" / "small" / "resolved.json").unlink()
    with pytest.raises(UserError, match=r"Mine, IID: selection 'own_mine.Mine': no module named 'own_mine'; run from"):
        plan_of()


def test_a_name_depends_neither_on_folders_nor_on_written_defaults(plan_of, study_of, tmp_path):
    first = names(plan_of())
    rows = {**CHANGES["rows"], "Mine": {"selection": {"class_path": "own_mine.Mine", "init_args": {"k": 2, "sign": 1}}}}
    study_of(**{**CHANGES, "rows": rows})
    assert names(plan_of()) == first
    (tmp_path / "exp").mkdir()
    (tmp_path / "own_mine.py").rename(tmp_path / "exp" / "own_mine.py")
    study_of(**CHANGES, base={**read_study_file(tmp_path / "small.yaml").base, "class_folders": ["exp"]})
    assert names(plan_of()) == first


def test_what_configs_name_and_own_code_are_read_again(tmp_path, monkeypatch, forget):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_mine.py").write_text(MINE)
    (tmp_path / "part.yaml").write_text("class_path: own_mine.Mine\n")
    (tmp_path / "my.yaml").write_text("model: {network: MLP}\ndata: {class_path: Digits}\nselection: part.yaml\n")

    def k():
        forget()
        found = Resolver(tmp_path / "kept.json")
        options = found.resolve(["--config=my.yaml"]).config["selection"]["init_args"]
        found.save()
        return options["k"]

    assert k() == 2
    (tmp_path / "own_mine.py").write_text(MINE.replace("k: int = 2", "k: int = 4"))
    os.utime(tmp_path / "own_mine.py", (1, 1))  # Python keeps what it has compiled by time and size
    assert k() == 4
    (tmp_path / "part.yaml").write_text("class_path: own_mine.Mine\ninit_args: {k: 3}\n")
    assert k() == 3


# --- other code -------------------------------------------------------------------------------------------------------
def test_cell_of_other_code_is_not_averaged(trained, tmp_path, capsys):
    assert make_table(trained()).places["Mine", "IID"].mean == pytest.approx(62.5)
    (tmp_path / "own_mine.py").write_text(MINE.replace("self.sign = sign", "self.sign = -sign"))
    plan = trained()
    assert words_of(plan) == {
        ("Local", 0): "done",
        ("Local", 1): "done",
        ("Mine", 0): "other code",
        ("Mine", 1): "other code",
    }
    made = make_table(plan)
    assert made.places["Mine", "IID"].remark == "other code"
    said = "of other code, and in no mean: Mine, IID, seed 0 and 1 more: own_mine has changed since it was trained"
    assert [note for note in made.notes if note.startswith(said)]
    assert main(["status", "small.yaml"]) == 0
    out = capsys.readouterr().out
    assert said in out
    assert "2 other code" in out
    assert {cell.state for cell in read_study(tmp_path / "studies" / "small").cells if cell.row == "Mine"} == {
        "other code"
    }


def test_accepted_code_counts_until_the_next_change(trained, tmp_path, capsys):
    (tmp_path / "own_mine.py").write_text(f"# a remark\n{MINE}")
    assert main(["run", "small.yaml", "--accept-code"]) == 0
    plan = trained()
    assert set(words_of(plan).values()) == {"done"}
    made = make_table(plan)
    assert made.places["Mine", "IID"].mean == pytest.approx(62.5)
    assert [note for note in made.notes if note.startswith("of other code, and accepted: Mine, IID, seed 0 and 1 more")]
    (tmp_path / "own_mine.py").write_text(f"# another remark\n{MINE}")
    assert words_of(trained())["Mine", 0] == "other code"


def test_run_begun_with_other_code_counts_as_other_code(trained, tmp_path):
    cell = next(cell for cell in trained().distinct() if cell.row == "Mine")
    (run,) = (cell.folder / "run").iterdir()
    file = run / "summary.json"
    summary = json.loads(file.read_text())
    summary["changed_on_resume"] = [{"round": 2, "changed": {"code.own_mine": ["a", "b"]}}]
    file.write_text(json.dumps(summary))
    assert state_of(cell).other_code == "its code has changed after round 2"
    file.unlink()  # it was stopped; its config alone says what code it is of
    (run / "config.yaml").write_text("seed_everything: 0\ncode:\n  own_mine: abc\nmodel: {}\n")
    assert state_of(cell).word == "other code"
    assert state_of(cell).rounds == 0


def test_cell_of_other_code_restarts_and_keeps_its_former_run(trained, tmp_path):
    (tmp_path / "own_mine.py").write_text(MINE.replace("sign: int = 1", "sign: int = -1"))
    cell = next(cell for cell in trained().distinct() if cell.row == "Mine")
    assert list(contradictions([cell])) == []  # its default is another one, but it is trained again
    asked = []

    class Started:
        pid = 1

    def start(words, log, environment, lock):
        asked.append(words)
        return Started()

    CellProcess(cell, 1, start=start)
    assert asked[0][0] == "--config"
    assert len(list((cell.folder / "other_code").iterdir())) == 1
    assert state_of(cell).run is None


def test_options_that_were_tuned_with_other_code_are_named(trained, study_of, tmp_path):
    trial = tmp_path / "studies" / "small" / "trials" / "a" / "run" / "1"
    trial.mkdir(parents=True)
    chosen = {"row": "Mine", "column": "IID", "values": {}, "folder": "trials/a"}
    tuned_file(tmp_path / "studies" / "small", 1.0).write_text(yaml.safe_dump({"chosen": [chosen]}))
    study_of(**CHANGES, tune={"trials": 1, "rows": {"Mine": {"selection.k": {"choices": [1, 2]}}}})

    def said(code):
        (trial / "summary.json").write_text(json.dumps({"status": "finished", "code": code}))
        return list(tuned_with_other_code(trained()))

    assert said(own(MINE)) == []
    (sentence,) = said(own("another one"))
    assert sentence.startswith("tuned with other code: Mine, IID: own_mine has changed since then; without tuned.yaml")


def test_data_are_equal_if_their_files_are(planned):
    cell = planned().distinct()[0]

    def with_options(**options):
        data = {"class_path": "Table", "init_args": {"path": "a.csv", "num_clients": 4, **options}}
        return replace(cell, config={**cell.config, "data": data}).data

    assert with_options() == with_options(num_clients=5, partition={"class_path": "IID"}, test_fraction=0.5)
    assert (
        len({with_options(), with_options(path="b.csv"), with_options(test_path="c.csv"), with_options(root="d")}) == 4
    )
