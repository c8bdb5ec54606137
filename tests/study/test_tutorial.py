"""docs/tutorial.md: its class, its study and its commands, run as they stand there on few clients and rounds."""

import csv
import re
import shlex
import sys
from pathlib import Path

import pytest

from dfl_lightning.cli import command as cli
from dfl_lightning.study.command import main

PAGE = (Path(__file__).parents[2] / "docs" / "tutorial.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", PAGE, re.DOTALL)
COMMANDS = [line for language, block in BLOCKS if not language for line in block.splitlines()]
SMALL = {"max_rounds: 20": "max_rounds: 2", "[0, 1, 2, 3, 4, 5]": "[0]", "  config: gossip\n": "  config: small.yaml\n"}
DATA = "{class_path: Digits, init_args: {num_clients: 8, samples_per_client: 40, test_fraction: 0.25}}"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """With the files of the page; the study's base has fewer clients."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    ((_, code),) = (found for found in BLOCKS if found[0] == "python")
    ((_, study),) = (found for found in BLOCKS if found[0] == "yaml")
    (tmp_path / "lowest_loss.py").write_text(code)
    for words, fewer in SMALL.items():
        assert words in study
        study = study.replace(words, fewer)
    (tmp_path / "idea.yaml").write_text(study.replace("{config: afind}", f"{{config: afind, data: {DATA}}}"))
    gossip = (Path(__file__).parents[2] / "configs" / "gossip.yaml").read_text()
    small = gossip.replace("num_clients: 24", "num_clients: 8\n    samples_per_client: 40")
    assert small != gossip
    (tmp_path / "small.yaml").write_text(small)
    return tmp_path


def test_the_page_from_the_first_command_to_the_last(folder, in_this_process, capsys):
    with in_this_process():
        for command in COMMANDS:
            program, *words = shlex.split(command)
            if program == "dfl-fit":
                few = ["--data.num_clients=8", "--trainer.accelerator=cpu", "--trainer.enable_progress_bar=false"]
                words[words.index("20")] = "1"
                assert cli.run("fit", [*words, *few]) == 0, command
                (config,) = folder.glob("runs/gossip/*/config.yaml")
                assert "lowest_loss.LowestLoss" in config.read_text()
            elif "--explain" not in words:  # that starts processes; the same study is explained in test_estimate.py
                assert main([word for word in words if word not in ("-j", "2")]) == 0, command
    assert "bytes_received" in capsys.readouterr().out
    assert (folder / "studies" / "idea" / "report.html").stat().st_size > 100_000
    assert r"\toprule" in (folder / "idea.tex").read_text()
    with open(folder / "idea.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    shown = re.findall(r"^\| ([\w+]+) \| \**\d\d\.\d\d ± ", PAGE, re.MULTILINE)
    assert [row["row"] for row in rows if row["column"] == "rotated"] == shown
    assert {row["n"] for row in rows} == {"1"}


def test_the_differences_on_the_page_are_those_of_its_table():
    means = {
        row: dict(zip(("rotated", "Dir(0.5)"), map(float, re.findall(r"(\d\d\.\d\d) ±", line)), strict=True))
        for row, line in re.findall(r"^\| ([\w+]+) \|(.* ± .*)$", PAGE, re.MULTILINE)
    }
    shown = re.findall(r"^\| (\S+) \| ([\w+]+) − ([\w+]+) \| \+(\S+) \|", PAGE, re.MULTILINE)
    assert len(shown) == 4
    for column, best, row, mean in shown:
        assert means[best][column] - means[row][column] == pytest.approx(float(mean), abs=0.011)
