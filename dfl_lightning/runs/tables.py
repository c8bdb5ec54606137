"""The formats of a run's tables, metrics.csv and npz files; a number that is written and read has the same bits."""

from __future__ import annotations

import csv
import io
import math
from pathlib import Path

import numpy as np

from dfl_lightning.utils.errors import UserError, reason
from dfl_lightning.utils.storage import files


def columns_of(score: str) -> list[str]:
    """Return the columns that every metrics.csv begins with, in order; those of monitors and policies follow.

    Args:
        score: the task's name for its score, such as `acc`.
    """
    return [
        *("round", "train_loss", "val_loss", f"val_{score}"),
        *("test_loss", f"test_{score}", f"test_{score}_std", f"test_{score}_worst10"),
        *("neighbours", "active", "models_received", "probes_received", "proxies_received", "bytes_received"),
        *("global_test_loss", f"global_test_{score}", "seconds"),
    ]


COLUMNS = columns_of("acc")
"""The columns of a run whose task is classification."""


def as_text(value: float) -> str:
    """Format a number so that reading it gives the same bits; NaN becomes an empty cell."""
    if math.isnan(value):
        return ""
    return str(int(value)) if float(value).is_integer() and abs(value) < 1e15 else repr(float(value))


def as_csv(rows: list[dict[str, str]], columns: list[str], header: bool = True) -> str:
    """Format rows of metrics.csv.

    Args:
        rows: the cells of each row, by column; missing ones become empty.
        columns: names of the columns, in order.
        header: True if the text begins with the names of the columns.
    """
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    if header:
        writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def read_metrics(path: Path, gaps: bool = False) -> list[dict[str, str]]:
    """Read the complete rows of a metrics.csv; return none if the file does not exist.

    A last row without a line break is left out: a killed run has not finished it.

    Args:
        path: the file.
        gaps: True if rounds may be missing between two rows.

    Raises:
        UserError: the rounds of the rows are not in order, or a cell is not a number.
    """
    if not path.is_file():
        return []
    try:
        text = path.read_bytes().decode()
        whole = text[: text.rfind("\n") + 1]
        reader = csv.DictReader(io.StringIO(whole, newline=""), strict=True)
        rows = list(reader)
        if whole and "round" not in (reader.fieldnames or []):
            raise ValueError("its first line has no column 'round'")
        for number, row in enumerate(rows):
            _check_row(row, int(rows[number - 1]["round"]) if number else None, gaps)
    except (csv.Error, ValueError) as error:
        raise damaged(path, reason(error)) from error
    return rows


def _check_row(row: dict[str, str], former: int | None, gaps: bool) -> None:
    """Check that a row can follow the one of round `former`, and that its cells are numbers.

    Raises:
        ValueError: it cannot, or a cell is not a number.
    """
    index = row["round"] or ""
    if None in row or None in row.values():
        raise ValueError(f"the row of round '{index}' does not have one cell for each column")
    is_number = index.isascii() and index.isdigit()
    if not is_number or (former is not None and (int(index) <= former or (int(index) > former + 1 and not gaps))):
        raise ValueError(f"there is a row of round '{index}'" + ("" if former is None else f" after round {former}"))
    for column, cell in row.items():
        try:
            float(cell or "nan")
        except ValueError as error:
            raise ValueError(f"round {index} has '{cell}' for {column}") from error


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """Read the arrays of an npz file, without running code of it; return none if the file does not exist."""
    if not path.is_file():
        return {}
    try:
        return files.read_npz(path)
    except ValueError as error:
        raise damaged(path, reason(error)) from error


def damaged(path: Path, why: str) -> UserError:
    """Return the error about a damaged file of a run; `why` is the reason in a few words."""
    return UserError(f"{path}: damaged ({why}); restore it, or move it away: reports and --fork work without it")


def read_rounds(path: Path, key: str) -> dict[int, dict[str, np.ndarray]]:
    """Read an npz file of a run and split its arrays by round; return no rounds if the file does not exist.

    Args:
        path: the file.
        key: name of the array that has the round of each row. It is removed from the arrays unless it is `round`.

    Raises:
        UserError: the file is damaged, or its arrays do not have the same number of rows.
    """
    arrays = read_npz(path)
    if not arrays:
        return {}
    rounds = arrays.get(key)
    same_length = rounds is not None and rounds.ndim == 1 and {a.shape[:1] for a in arrays.values()} == {rounds.shape}
    if rounds is None or not same_length or rounds.dtype.kind not in "iu":
        raise damaged(path, f"its arrays do not have a row for each entry of '{key}'")
    kept = [name for name in arrays if name != key or key == "round"]
    return {int(r): {name: arrays[name][rounds == r] for name in kept} for r in np.unique(rounds)}
