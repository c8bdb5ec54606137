"""A finished run of a shipped config: the files and columns that docs/run_folder.md promises."""

import csv
import json

import numpy as np

OF_OTHER_PAGES = {"forecast", "multilabel", "regression", "tabular", "text", "text_lstm", "async_gossip", "async_afind"}
"""Configs that show a task or a clock, with a method of another config; docs/methods.md has a row of all others."""

FILES = {"config.yaml", "commands.csv", "metrics.csv", "clients.npz", "graphs.npz", "split.npz", "summary.json"}
FILES |= {"checkpoints"}
COLUMNS = [
    *["round", "train_loss", "val_loss", "val_acc", "test_loss", "test_acc", "test_acc_std", "test_acc_worst10"],
    *["neighbours", "active", "models_received", "probes_received", "proxies_received", "bytes_received"],
    *["global_test_loss", "global_test_acc", "seconds"],
]


def check_documented(run, rounds, evaluations, clients):
    """Check the files of a finished run, the columns of its rounds and the scores of its summary."""
    names = {file.name for file in run.iterdir()}
    assert FILES <= names <= FILES | {"comparisons.npz", "dropouts.npz", "substitutes.npz"}
    assert (run / "checkpoints" / "last.ckpt").is_file()
    summary = json.loads((run / "summary.json").read_text())
    assert summary["status"] == "finished"
    score = summary["task"]["score"]
    with open(run / "metrics.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["round"] for row in rows] == [str(index) for index in range(rounds)]
    assert [column.replace(f"_{score}", "_acc") for column in rows[0]][: len(COLUMNS)] == COLUMNS
    with np.load(run / "clients.npz", allow_pickle=False) as arrays:
        assert arrays[f"test_{score}"].shape == (evaluations, clients)
    of_classes = {f"acc_{which}" for which in ("last", "best_round", "best_per_client", "best_val")}
    assert of_classes <= set(summary.get("test_accuracy", of_classes))
    assert ("test_score" in summary) == (score != "acc")
