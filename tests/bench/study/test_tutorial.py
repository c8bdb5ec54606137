"""docs/tutorial.md: its class, its study and its commands, run as they stand there on few clients and rounds."""

import csv
import re
import shlex
import sys
from pathlib import Path

import pytest
from cells_here import in_this_process
from forked import Forked

from dfl_lightning.bench.study.command import main
from dfl_lightning.cli import command as cli

PAGE = (Path(__file__).parents[3] / "docs" / "tutorial.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", PAGE, re.DOTALL)
LINES = [line for language, block in BLOCKS if not language for line in block.splitlines()]
COMMANDS = [line for line in LINES if "--explain" not in line]  # the same study is explained in test_estimate.py
RUN = "dfl-study run idea.yaml -j 2"
AGAIN = [RUN, "dfl-study table idea.yaml --number bytes_received --over-rounds sum --better lower"]
"""Commands that are given once more; the report and the other tables read the same cells."""
SMALL = {"max_rounds: 20": "max_rounds: 2", "[0, 1, 2, 3, 4, 5]": "[0]", "  config: gossip\n": "  config: small.yaml\n"}
DATA = "{class_path: Digits, init_args: {num_clients: 8, samples_per_client: 40, test_fraction: 0.25}}"


FEW = ["--data.num_clients=8", "--trainer.accelerator=cpu", "--trainer.enable_progress_bar=false"]


@pytest.fixture
def folder(tmp_path):
    """Make a working folder with the files of the page; the study's base has fewer clients."""
    ((_, code),) = (found for found in BLOCKS if found[0] == "python")
    ((_, study),) = (found for found in BLOCKS if found[0] == "yaml")
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "lowest_loss.py").write_text(code)
    for words, fewer in SMALL.items():
        assert words in study
        study = study.replace(words, fewer)
    (folder / "idea.yaml").write_text(study.replace("{config: afind}", f"{{config: afind, data: {DATA}}}"))
    gossip = (Path(__file__).parents[3] / "configs" / "gossip.yaml").read_text()
    small = gossip.replace("num_clients: 24", "num_clients: 8\n    samples_per_client: 40")
    assert small != gossip
    (folder / "small.yaml").write_text(small)
    return folder


def run_command():
    """Run one command in a process of a test, which runs the cells of a study itself."""
    program, *words = sys.argv
    with in_this_process():
        return main(words) if program == "dfl-study" else cli.run("fit", words)


def alone(command, folder):
    """Run a command in a process of its own; return what it prints."""
    program, *words = shlex.split(command)
    if program == "dfl-fit":
        words[words.index("20")] = "1"
        words += FEW
    process = Forked(f"{__file__}:run_command", [program, *words], folder)
    out, err = process.communicate()
    assert process.returncode == 0, (command, out, err)
    return out


@pytest.mark.slow
def test_commands_of_the_page_train_each_run_once(folder):
    said = {command: alone(command, folder) for command in COMMANDS}
    (config,) = folder.glob("runs/gossip/*/config.yaml")
    assert "lowest_loss.LowestLoss" in config.read_text()
    assert "bytes_received" in said[COMMANDS[-1]]
    assert (folder / "studies" / "idea" / "report.html").stat().st_size > 100_000
    assert r"\toprule" in (folder / "idea.tex").read_text()
    with open(folder / "idea.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    shown = re.findall(r"^\| ([\w+]+) \| \**\d\d\.\d\d ± ", PAGE, re.MULTILINE)
    assert [row["row"] for row in rows if row["column"] == "rotated"] == shown
    assert {row["n"] for row in rows} == {"1"}

    runs = sorted(folder.glob("studies/idea/cells/*/run/*"))
    assert len(runs) == len(rows)
    again = {command: alone(command, folder) for command in COMMANDS if command in AGAIN}
    assert len(again) == len(AGAIN)
    assert sorted(folder.glob("studies/idea/cells/*/run/*")) == runs
    assert f"{len(runs)}/{len(runs)} cells done" in again[RUN].partition(" · ")[0]
    assert again[AGAIN[1]].partition("made:")[0] == said[AGAIN[1]].partition("made:")[0]


def test_the_differences_on_the_page_are_those_of_its_table():
    means = {
        row: dict(zip(("rotated", "Dir(0.5)"), map(float, re.findall(r"(\d\d\.\d\d) ±", line)), strict=True))
        for row, line in re.findall(r"^\| ([\w+]+) \|(.* ± .*)$", PAGE, re.MULTILINE)
    }
    shown = re.findall(r"^\| (\S+) \| ([\w+]+) − ([\w+]+) \| \+(\S+) \|", PAGE, re.MULTILINE)
    assert len(shown) == 6
    for column, best, row, mean in shown:
        assert means[best][column] - means[row][column] == pytest.approx(float(mean), abs=0.011)
