"""What a run on a task other than classes prints, writes, shows and exports: no image where there is none, no accuracy.

Files, pages and messages name the score, the samples and the clients in the words of the task at hand.
"""

import base64
import gzip
import json
import re
import sys

import pytest
from safetensors import safe_open

pytest.importorskip("altair", reason="the extra `report` is not installed")

from dfl_lightning.cli import command as cli
from dfl_lightning.cli import export_command
from dfl_lightning.cli import report as report_command

SMALL = {
    "regression": ["--model.network.hidden", "[4]"],
    "tabular": ["--data.num_clients", "8", "--model.network.hidden", "[4]"],
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
IMAGES = r"\b(?:images?|pictures?|pixels?|writers?)\b"
ACCURACY = r"\bacc(?:urac(?:y|ies))?\b|(?<!token)(?<!label)(?<!subset)_acc\b"
OWN = {"text": "token accuracy", "multilabel": "(?:label|subset) accuracy"}
"""Numbers of the task that are accuracies of something."""


def wrong(text, config):
    """Words that this run should not have said, each with what stands around it."""
    text = re.sub(OWN.get(config, "$^"), "", text, flags=re.IGNORECASE)
    words = [IMAGES, ACCURACY] if config == "multilabel" else [IMAGES, ACCURACY, r"\blabels?\b"]
    found = re.finditer("|".join(words), text, re.IGNORECASE)
    return [text[max(0, match.start() - 60) : match.end() + 60] for match in found]


def shown(page):
    """What a reader of the page sees or hears: text, titles of charts, what is said for a screen reader."""
    packed = re.search(r'id="packed-data">(.*?)</script>', page)[1].translate(str.maketrans(".,", "<&"))
    titles = strings(json.loads(gzip.decompress(base64.b85decode(packed))))
    page = re.sub(r"<(script|style)\b.*?</\1>", " ", page, flags=re.DOTALL)
    spoken = re.findall(r"(?:aria-label|alt|title)=[\"'](.*?)[\"']", page)
    return "\n".join([re.sub(r"<[^>]+>", " ", page), *spoken, *titles])


def strings(value):
    """What is written in charts and tables, however deep; names of fields and the configs' options are no words."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key not in ("field", "of", "configs"):
                yield from strings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from strings(inner)
    elif isinstance(value, str):
        yield value


@pytest.mark.parametrize("config", SMALL)
def test_a_run_speaks_in_the_words_of_its_task(config, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("PL_GLOBAL_SEED", "0")
    words = ["--config", config, *SMALL[config], "--trainer.max_rounds", "2", "--trainer.accelerator", "cpu"]
    assert cli.run("fit", words) == 0
    [run] = tmp_path.glob("runs/*/*")
    assert report_command.main([str(run)]) == 0
    assert export_command.main([str(run), "--client", "0", "--to", "models"]) == 0
    printed = capsys.readouterr()
    [model] = (tmp_path / "models").glob("*.safetensors")
    with safe_open(model, "pt") as file:
        exported = json.dumps([file.metadata(), list(file.keys()), model.name])
    for what, text in {
        "printed": printed.out + printed.err,
        "columns": (run / "metrics.csv").read_text().splitlines()[0],
        "summary": (run / "summary.json").read_text(),
        "files": "\n".join(str(path.relative_to(run)) for path in run.rglob("*")),
        "page": shown((run / "report.html").read_text()),
        "exported": exported,
    }.items():
        assert wrong(text, config) == [], what
