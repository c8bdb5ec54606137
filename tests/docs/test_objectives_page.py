"""The rules of docs/objectives.md, run as they stand there; tests of objectives show that such rules are right."""

import re
from pathlib import Path

import pytest
import torch

from dfl_lightning import callbacks
from dfl_lightning.cli.command import run
from dfl_lightning.engines.local_work import JobContext, TrainableModel

PAGE = (Path(__file__).parents[2] / "docs" / "objectives.md").read_text(encoding="utf-8")
DITTO, MOON = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
TINY = "--trainer.max_rounds 2 --data.num_clients 6 --model.local_epochs 1 --trainer.accelerator cpu"


@pytest.fixture
def page():
    scope: dict = {}
    for example in (DITTO, MOON):
        exec(compile(example, "objectives.md", "exec"), scope)
    return scope


def test_command_of_the_page_runs_the_users_file(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "mine.py").write_text(DITTO, encoding="utf-8")
    (words,) = re.findall(r"`(--objective mine[^`]*)`", PAGE)
    assert run("fit", ["--config", "gossip", *words.split(), *TINY.split()]) == 0, capsys.readouterr().err


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_clients_of_ditto_are_judged_by_their_own_model(small_run, page, engine):
    run = small_run(
        2, policies=[callbacks.Gossip(2), callbacks.Uniform()], module={"objective": page["Ditto"]()}, engine=engine
    )
    bank = run.fit().module.bank
    assert run.module.federation.reported_rows == "personal"
    assert run.module.engine.name == engine
    assert not torch.equal(bank.rows("personal"), bank.rows("models"))


class Former(callbacks.Monitor):
    """Keeps the trained models of each round."""

    def __init__(self):
        self.trained, self.found = [], []

    def on_compare(self, round):
        self.found.append(round.bank.rows("previous").clone())
        self.trained.append(round.bank.rows("trained").clone())


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_moon_uses_trained_models_of_the_previous_round(small_run, page, engine):
    former = Former()
    objective = {"objective": page["MOON"]()}
    run = small_run(
        3, policies=[callbacks.Gossip(2), callbacks.Uniform()], callbacks=[former], module=objective, engine=engine
    )
    run.fit()
    assert run.module.engine.name == engine
    for before, found in zip(former.trained, former.found[1:], strict=False):
        assert torch.equal(before, found)


def test_the_table_has_what_a_model_has():
    table = PAGE.split("| | |\n|---|---|\n")[1].split("\n\n")[0]
    named = {name for row in table.splitlines() for name in re.findall(r"`(\w+)[(`]", row.split("|")[1])}
    assert named == {name for name in dir(TrainableModel) if not name.startswith("_")}
    for name in (name for name in dir(JobContext) if not name.startswith("_")):
        assert re.search(rf"ctx\.{name}[(`]", PAGE), name
