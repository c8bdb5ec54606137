"""A study whose columns are tasks of several kinds: each with its data, its network and its score, in real runs."""

import csv
import re

import yaml
from words_of_tasks import shown, wrong

from dfl_lightning.bench.study.command import main

STUDY = {
    "name": "tasks",
    "base": {
        "trainer": {"max_rounds": 2, "accelerator": "cpu"},
        "selection": {"class_path": "Gossip", "init_args": {"k": 2}},
        "aggregation": "Uniform",
    },
    "rows": {"Gossip": {}, "Local": {"selection.k": 0}},
    "columns": {
        "digits": {
            "model": {"network": {"class_path": "MLP", "init_args": {"hidden": [4]}}, "local_epochs": 1},
            "data": {
                "class_path": "Digits",
                "init_args": {
                    "num_clients": 4,
                    "samples_per_client": 40,
                    "partition": {"class_path": "RotatedClusters", "init_args": {"degrees": [0, 180]}},
                },
            },
        },
        "seasons": {
            "model": {
                "network": {"class_path": "TCN", "init_args": {"channels": [4]}},
                "local_epochs": 1,
                "task": "Forecast",
            },
            "data": {"class_path": "Series", "init_args": {"num_clients": 4, "stride": 8}},
        },
    },
    "seeds": [0],
    "score": "last",
}
COLUMNS = {"digits": ("test_acc", 100, max), "seasons": ("test_rmse", 1, min)}


def test_each_column_has_its_tasks_score_unit_and_direction(tmp_path, monkeypatch, capsys, in_this_process):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tasks.yaml").write_text(f"# Two tasks in one table\n{yaml.safe_dump(STUDY, sort_keys=False)}")
    with in_this_process():
        assert main(["run", "tasks.yaml"]) == 0
    capsys.readouterr()
    assert main(["table", "tasks.yaml"]) == 0
    text = capsys.readouterr().out
    for place, (column, (name, factor, best)) in enumerate(COLUMNS.items(), start=2):
        measured = {}
        for row in ("Gossip", "Local"):
            [file] = tmp_path.glob(f"studies/tasks/cells/{row}_{column}_*/run/*/metrics.csv")
            *_, last = csv.DictReader(file.read_text(encoding="utf-8").splitlines())
            measured[row] = factor * float(last[name])
        printed = {row: re.search(rf"^\| {row} \|.*$", text, re.MULTILINE)[0].split("|")[place] for row in measured}
        for row, value in measured.items():
            assert abs(float(re.search(r"[\d.]+", printed[row])[0]) - value) < 0.006 * max(1, value)
            assert ("**" in printed[row]) == (value == best(measured.values()))
    seasons = STUDY | {"columns": {"seasons": STUDY["columns"]["seasons"]}}  # the same cells, without any classes
    (tmp_path / "seasons.yaml").write_text(f"# Seasons alone\n{yaml.safe_dump(seasons, sort_keys=False)}")
    for words in ("table", "table --format csv", "report", "run"):
        command, *options = words.split()
        assert main([command, "seasons.yaml", *options]) == 0
    printed = capsys.readouterr()
    page = (tmp_path / "studies" / "tasks" / "report.html").read_text(encoding="utf-8")
    for text in (printed.out, printed.err, shown(page)):
        assert wrong(text, "forecast") == []
        assert not re.search(r"RMSE\W{0,3}%|in percent", text)
