"""The formats of a run's tables: metrics.csv and npz files, to text and back with the same bits."""

from __future__ import annotations

import csv
import io
import math
from pathlib import Path

import numpy as np

from dfl_lightning.utils.errors import UserError, reason
from dfl_lightning.utils.storage import files


def columns_of(score: str) -> list[str]:
    """The columns that every metrics.csv has, in this order; monitors and policies add their own after them.

    Args:
        score: what the task calls its score.
    """
    return [
        *("round", "train_loss", "val_loss", f"val_{score}"),
        *("test_loss", f"test_{score}", f"test_{score}_std", f"test_{score}_worst10"),
        *("neighbours", "active", "models_received", "probes_received", "proxies_received", "bytes_received"),
        *("global_test_loss", f"global_test_{score}", "seconds"),
    ]


COLUMNS = columns_of("acc")
"""Those of a run on classes."""


def as_text(value: float) -> str:
    """A number so that reading gives the same bits; an empty cell for NaN."""
    if math.isnan(value):
        return ""
    return str(int(value)) if float(value).is_integer() and abs(value) < 1e15 else repr(float(value))


def as_csv(rows: list[dict[str, str]], columns: list[str], header: bool = True) -> str:
    """Rows of metrics.csv as text.

    Args:
        rows: text by column.
        columns: their names, in order.
        header: whether the text begins with the columns' names.
    """
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    if header:
        writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def read_metrics(path: Path, gaps: bool = False) -> list[dict[str, str]]:
    """The whole rows of a metrics.csv, none where there is no file; a killed run may have torn the last one.

    Args:
        path: the file.
        gaps: rounds may be missing in between.

    Raises:
        UserError: a row has no place after the one before it, or cells that are no numbers.
    """
    if not path.is_file():
        return []
    try:
        text = path.read_bytes().decode()
        whole = text[: text.rfind("\n") + 1]
        reader = csv.DictReader(io.StringIO(whole, newline=""), strict=True)
        rows = list(reader)
        if whole and "round" not in (reader.fieldnames or []):
            raise ValueError("its first line names no column 'round'")
        for number, row in enumerate(rows):
            _check_row(row, int(rows[number - 1]["round"]) if number else None, gaps)
    except (csv.Error, ValueError) as error:
        raise damaged(path, reason(error)) from error
    return rows


def _check_row(row: dict[str, str], former: int | None, gaps: bool) -> None:
    """Refuse a row that a run does not write after the one of round `former`.

    Raises:
        ValueError: what is wrong with it.
    """
    index = row["round"] or ""
    if None in row or None in row.values():
        raise ValueError(f"the row of round '{index}' has not as many cells as there are columns")
    is_number = index.isascii() and index.isdigit()
    if not is_number or (former is not None and (int(index) <= former or (int(index) > former + 1 and not gaps))):
        raise ValueError(f"there is a row of round '{index}'" + ("" if former is None else f" after round {former}"))
    for column, cell in row.items():
        try:
            float(cell or "nan")
        except ValueError as error:
            raise ValueError(f"round {index} has '{cell}' for {column}") from error


_FORMER = {"speaker": "substitute", "stand_in": "substitute"}  # columns of older run folders, by their present names
_FORMER_FILES = {"substitutes.npz": "stand_ins.npz"}


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an npz file, none where there is no file; runs no code of it."""
    if not path.is_file():
        path = path.with_name(_FORMER_FILES.get(path.name, path.name))
    if not path.is_file():
        return {}
    try:
        return {_FORMER.get(name, name): array for name, array in files.read_npz(path).items()}
    except ValueError as error:
        raise damaged(path, reason(error)) from error


def damaged(path: Path, why: str) -> UserError:
    """The error for a file of a run that cannot be used.

    Args:
        path: of the file.
        why: the reason, in a few words.
    """
    return UserError(f"{path}: damaged ({why}); restore it, or move it away: reports and --fork do without it")


def read_rounds(path: Path, key: str) -> dict[int, dict[str, np.ndarray]]:
    """The rows of each round in an npz file of a run, by round, none where there is no file.

    The array of the rounds itself stays where it names an edge's round.

    Args:
        path: the file.
        key: the array of the rounds.

    Raises:
        UserError: it is damaged, or its arrays do not belong together.
    """
    arrays = read_npz(path)
    if not arrays:
        return {}
    rounds = arrays.get(key)
    belong = rounds is not None and rounds.ndim == 1 and {a.shape[:1] for a in arrays.values()} == {rounds.shape}
    if rounds is None or not belong or rounds.dtype.kind not in "iu":
        raise damaged(path, f"its arrays do not have a row for each entry of '{key}'")
    kept = [name for name in arrays if name != key or key == "round"]
    return {int(r): {name: arrays[name][rounds == r] for name in kept} for r in np.unique(rounds)}
