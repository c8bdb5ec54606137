"""The formats of a run's tables: metrics.csv and npz files, to text and back with the same bits."""

from __future__ import annotations

import csv
import io
import math
from pathlib import Path

import numpy as np

from dfl_lightning import files
from dfl_lightning.errors import UserError, reason

COLUMNS = [
    *("round", "train_loss", "val_loss", "val_acc", "test_loss", "test_acc", "test_acc_std", "test_acc_worst10"),
    *("neighbours", "active", "models_received", "probes_received", "proxies_received", "bytes_received"),
    *("global_test_loss", "global_test_acc", "seconds"),
]
"""The columns that every metrics.csv has, in this order; monitors and policies add their own after them."""


def as_text(value: float) -> str:
    """A number so that reading gives the same bits; an empty cell for NaN."""
    if math.isnan(value):
        return ""
    return str(int(value)) if float(value).is_integer() and abs(value) < 1e15 else repr(float(value))


def as_csv(rows: list[dict[str, str]], extra: list[str], header: bool = True) -> str:
    """Rows of metrics.csv as text: the fixed columns, then the extra ones."""
    text = io.StringIO()
    writer = csv.DictWriter(text, [*COLUMNS, *extra], restval="", lineterminator="\n")
    if header:
        writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def read_metrics(path: Path) -> list[dict[str, str]]:
    """The whole rows of a metrics.csv, none where there is no file."""
    if not path.is_file():
        return []
    try:
        with open(path, encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
    except (csv.Error, UnicodeDecodeError) as error:
        raise _damaged(path, error) from error
    # a killed run may tear its last row
    return [row for row in rows if None not in row.values() and (row.get("round") or "").isdigit()]


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an npz file, none where there is no file; runs no code of it."""
    if not path.is_file():
        return {}
    try:
        return files.read_npz(path)
    except ValueError as error:
        raise _damaged(path, error) from error


def _damaged(path: Path, error: Exception) -> UserError:
    return UserError(f"{path}: damaged ({reason(error)}); restore it, or move it away and go on without it")


def by_round(arrays: dict[str, np.ndarray], key: str) -> dict[int, dict[str, np.ndarray]]:
    """The rows of each round, by round; the key itself stays where it names an edge's round."""
    if key not in arrays:
        return {}
    kept = [name for name in arrays if name != key or key == "round"]
    return {int(r): {name: arrays[name][arrays[key] == r] for name in kept} for r in np.unique(arrays[key])}
