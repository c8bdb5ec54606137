"""A column of metrics.csv at the best validation score, as `best_val` is for the score."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dfl_lightning.runs.tables import read_metrics, read_npz
from dfl_lightning.utils.score import Score

if TYPE_CHECKING:
    from torch import Tensor

_KINDS = ("std", "variance", "best10", "worst10", "adversaries")


def is_of_clients(column: str) -> bool:
    """Return True if a column of an evaluation reduces a number that clients.npz has for each client.

    Args:
        column: name of a column of metrics.csv.

    Examples:
        >>> [is_of_clients(name) for name in ("test_acc_std", "val_loss", "test_auroc_undefined", "global_test_acc")]
        [True, True, False, False]
    """
    return column.startswith(("val_", "test_")) and not column.endswith("_undefined")


def at_best_validation(column: str, summary: Mapping[str, Any], run: Path) -> float | None:
    """Return a number of a run at the best validation score, in the unit of metrics.csv; None if it has none.

    A number over clients, such as `test_acc_std`, is that of each client's value in its own best round on validation
    data, the latest among equals, as in `score: best_val`. Any other number is that of the evaluated round with the
    best mean validation score, the latest among equals.

    Args:
        column: name of a column of metrics.csv.
        summary: content of the run's summary.json.
        run: folder of the run.
    """
    score = Score.read(summary)
    return _over_clients(column, score, summary, run) if is_of_clients(column) else _of_round(column, score, run)


def _over_clients(column: str, score: Score, summary: Mapping[str, Any], run: Path) -> float | None:
    import torch

    from dfl_lightning.functional.evaluation import latest_best, without_accuracy

    arrays = {name: torch.from_numpy(array) for name, array in read_npz(run / "clients.npz").items()}
    validation = arrays.get(f"val_{score.name}")
    name, kind = _parts(column, arrays)
    if validation is None or name not in arrays:
        return None
    history, losses = arrays[name], arrays.get(f"{name.partition('_')[0]}_loss")
    broken = torch.zeros_like(history, dtype=torch.bool) if losses is None else without_accuracy(losses, history)
    counted = torch.ones(history.shape[1], dtype=torch.bool)
    counted[summary.get("attack", {}).get("clients", [])] = False
    if kind == "adversaries":
        counted = ~counted
    merits = validation if score.higher_is_better else -validation
    values = latest_best(history.double(), merits.double())[counted]
    seen = broken.any(0) & ~validation.isnan().all(0)
    if bool((values.isnan() & seen[counted]).any()):
        return math.nan
    return _reduced(values, kind, score.higher_is_better)


def _parts(column: str, arrays: Mapping[str, Any]) -> tuple[str, str]:
    """Split a column into the array of clients.npz and the way in which it is reduced, a mean if the name has none."""
    match = re.fullmatch(rf"(\w+)_({'|'.join(_KINDS)})", column)
    return (match[1], match[2]) if match is not None and column not in arrays else (column, "mean")


def _reduced(values: Tensor, kind: str, higher_is_better: bool) -> float | None:
    from dfl_lightning.functional.evaluation import over_clients, worst_decile_mean

    known = values[~values.isnan()]
    if not len(known):
        return None
    if kind == "variance":
        return float(known.var(correction=0))
    if kind == "best10":
        sign = -1 if higher_is_better else 1
        return sign * worst_decile_mean(sign * known)
    over = over_clients(known, higher_is_better=higher_is_better)
    return {"std": over.std, "worst10": over.worst10}.get(kind, over.mean)


def _of_round(column: str, score: Score, run: Path) -> float | None:
    rows = [row for row in read_metrics(run / "metrics.csv") if row.get(f"val_{score.name}")]
    if not rows:
        return None
    merits = np.array([score.merit(float(row[f"val_{score.name}"])) for row in rows])
    best = rows[len(rows) - 1 - int(merits[::-1].argmax())]
    return float(best[column]) if best.get(column) else None
