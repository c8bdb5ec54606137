"""The README's policy against its words, and comparisons that pages quote; test_walk.py runs its commands."""

import copy
import importlib
import re
import shlex
from pathlib import Path

import pytest
import torch

from dfl_lightning import callbacks
from dfl_lightning.cli.command import run

README = Path(__file__).parents[2] / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_the_readmes_policy_chooses_the_lowest_losses_among_its_candidates(small_run):
    scope: dict = {}
    exec(compile(BLOCKS[1], "README.md", "exec"), scope)
    judged = []

    class Judge(callbacks.Monitor):
        def on_substitute(self, round):
            network = copy.deepcopy(round.federation.network)
            for i in range(round.num_clients):
                x, y = round.data.batch(round.data.train[i])
                losses = {}
                for j in round.candidates.heard_by(i).tolist():
                    network.load_state_dict(round.federation.layout.state_dict(round.bank.rows("trained")[j]))
                    losses[j] = float(torch.nn.functional.cross_entropy(network(x), y))
                lowest = sorted(losses, key=losses.get)[:2]
                judged.append((len(losses), set(lowest), set(round.selected.heard_by(i).tolist())))

    small_run(2, policies=[scope["LowestLoss"](k=2, candidates=4), callbacks.Uniform()], callbacks=[Judge()]).fit()
    assert len(judged) == 2 * 6
    assert all(number == 4 and chosen == lowest for number, lowest, chosen in judged)


@pytest.fixture
def compare(monkeypatch):
    monkeypatch.syspath_prepend(str(README.parent / "scripts"))
    return importlib.import_module("compare")


def test_every_comparison_that_is_quoted_can_be_made(compare, folder, capsys):
    pages = [README, *(README.parent / "docs").glob("*.md")]
    text = " ".join(" ".join(page.read_text(encoding="utf-8").split()) for page in pages)
    quoted = set(re.findall(r"`(?:python scripts/)?compare\.py ([^`]*)`", text))
    assert {"toy", "afind"} <= quoted
    for options in quoted:
        words = compare.parser().parse_args(shlex.split(options))
        argv = next(iter(compare.commands(words.config).values()))
        assert run("fit", [*argv, *words.more.split(), "--explain"]) == 0, capsys.readouterr().err


def test_toy_table_has_the_rows_and_columns_of_its_script(compare):
    section = (README.parent / "docs" / "toy.md").read_text(encoding="utf-8").split("compare.py toy`")[1]
    lines = re.findall(r"^\| *(.*?) *\|$", section, re.MULTILINE)
    head, _, *rows = ([cell.strip() for cell in re.split(r" *\| *", line)] for line in lines)
    assert head[1:] == list(compare.toy.COLUMNS)
    assert [row[0] for row in rows] == list(compare.toy.METHODS)
    assert all(len(row) == len(head) for row in rows)
