"""Words of a run on another task than classes: in prints, files, pages and exports, without accuracies and images.

Files, pages and messages name the score, the samples and the clients in the words of the task at hand.
"""

import json
import re
import sys

import pytest
from safetensors import safe_open
from words_of_tasks import shown, wrong

pytest.importorskip("altair", reason="the extra `report` is not installed")

from dfl_lightning.bench.report import command as report_command
from dfl_lightning.cli import command as cli
from dfl_lightning.cli.exports import export_command

SMALL = {
    "regression": ["--model.network.hidden", "[4]"],
    "tabular": ["--data.num_clients", "8", "--model.network.hidden", "[4]", "--model.optimizer.lr", "0.01"],
    "multilabel": ["--model.network.hidden", "[4]", "--selection.stage_one", "1"],
    "text": [
        "--data.num_clients",
        "4",
        "--data.most",
        "400",
        "--model.network.width",
        "8",
        "--model.network.depth",
        "1",
    ],
    "forecast": ["--data.num_clients", "6", "--data.stride", "6", "--model.network.channels", "[4]"],
}


@pytest.mark.parametrize(
    "config",
    [pytest.param(config, marks=[pytest.mark.slow] * (config in ("tabular", "multilabel"))) for config in SMALL],
)
def test_run_uses_the_words_of_its_task(config, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("PL_GLOBAL_SEED", "0")
    words = ["--config", config, *SMALL[config], "--trainer.max_rounds", "2", "--trainer.accelerator", "cpu"]
    assert cli.run("fit", words) == 0
    [run] = tmp_path.glob("runs/*/*")
    assert report_command.main([str(run)]) == 0
    assert export_command.main([str(run), "--client", "0", "--out", "models"]) == 0
    printed = capsys.readouterr()
    [model] = (tmp_path / "models").glob("*.safetensors")
    with safe_open(model, "pt") as file:
        exported = json.dumps([file.metadata(), list(file.keys()), model.name])
    page = shown((run / "report.html").read_text()).replace("classes = false, labels = false, ", "")
    for what, text in {
        "printed": printed.out + printed.err,
        "columns": (run / "metrics.csv").read_text().splitlines()[0],
        "summary": (run / "summary.json").read_text(),
        "files": "\n".join(str(path.relative_to(run)) for path in run.rglob("*")),
        "page": re.sub(r"classes: false\s+labels: false\s", "", page),  # options, and the config that is copied
        "exported": exported,
    }.items():
        assert wrong(text, config) == [], what
