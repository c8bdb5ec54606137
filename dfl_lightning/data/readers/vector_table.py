"""A reader of tables in CSV and npz files, with inputs and targets in each row."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from zipfile import BadZipFile

import numpy as np

from dfl_lightning.utils.errors import MissingData, UserError, reason

__all__ = ["Kind", "VectorTable", "place_in", "read_csv", "read_table", "refuse_empty_names"]

Kind = Literal["numbers", "classes", "labels"]


@dataclass(frozen=True)
class VectorTable:
    """The content of a table.

    Args:
        name: name of the file, or of the data.
        inputs: [N, d]; categorical columns come first, as numbers of their values from 1 on, 0 for an empty value.
        targets: numbers or labels (0 or 1), [N] or [N, k], or names of classes, [N].
        owners: client of each row, [N] of any type; None if the file does not name it.
        kind: kind of the targets.
        categories: number of values of each categorical column.
        words: names of the columns, and the values of each categorical column in the order of their numbers.
    """

    name: str
    inputs: np.ndarray
    targets: np.ndarray
    owners: np.ndarray | None = None
    kind: Kind = "numbers"
    categories: tuple[int, ...] = ()
    words: tuple[str, ...] = ()


def place_in(file: str, row: int) -> str:
    """Describe the place of a row in a CSV or an npz file, so that a user can look it up.

    Args:
        file: name of the file.
        row: index of the row, counted from 0, without the header.

    Examples:
        >>> place_in("table.csv", 0), place_in("table.npz", 0)
        ('line 2', 'row 0 (counted from 0)')
    """
    return f"line {row + 2}" if file.lower().endswith(".csv") else f"row {row} (counted from 0)"


def read_csv(path: Path) -> tuple[list[str], list[list[str]]]:
    """Read the names of columns and the rows of a CSV file.

    A byte order mark, which spreadsheets write before the first name, and empty lines at the end are ignored.

    Args:
        path: the .csv file.

    Raises:
        OSError: the file cannot be read; likewise `UnicodeDecodeError` and `csv.Error`.
    """
    with path.open(newline="", encoding="utf-8-sig") as file:
        header, *rows = list(csv.reader(file)) or [[]]
    while rows and not rows[-1]:
        rows.pop()
    return header, rows


def refuse_empty_names(path: Path, data: str, column: str, names: np.ndarray) -> None:
    """Raise if a row has no name of its client or class, as all such rows would be one client or class.

    Args:
        path: the file, for the message.
        data: name of the data set, for the message.
        column: column with the names, for the message.
        names: names of all rows, [N]; a missing name is an empty text or NaN.

    Raises:
        UserError: a name is missing; the message tells the first such row.
    """
    texts = names.dtype.kind in "SU"
    empty = np.char.strip(names) == names.dtype.type() if texts else names != names
    if empty.any():
        place = place_in(path.name, int(np.flatnonzero(empty)[0]))
        raise UserError(f"data {data}: {path}: {column} of {place} is empty; fill it in, or remove the row")


def read_table(
    path: Path, target: Sequence[str], client: str | None, kind: Kind, categories: Sequence[str] = ()
) -> VectorTable:
    """Read a table from a CSV or an npz file.

    Args:
        path: the .csv or .npz file.
        target: columns of a CSV file that are predicted; in an npz file it is the array y.
        client: column, or array, that names the client of each row; None: there is none.
        kind: kind of the targets.
        categories: columns of a CSV file whose values are names, not numbers.

    Raises:
        MissingData: the file does not exist.
        UserError: the file cannot be read, has another layout, or values that are not numbers.
    """
    if path.suffix.lower() not in (".csv", ".npz"):
        raise UserError(f"data Vectors: {path} is neither a .csv nor an .npz file; convert it to one of them")
    csv_file = path.suffix.lower() == ".csv"
    if not csv_file and (target or categories):
        raise UserError(
            "data Vectors: data.target and data.categories name columns of a CSV file; an npz file's targets are its "
            "array y, and its inputs are numbers"
        )
    try:
        table = _read_csv(path, target, client, kind, categories) if csv_file else _read_npz(path, client, kind)
    except FileNotFoundError as error:
        raise MissingData(f"data Vectors: {path} does not exist; check data.file") from error
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"data Vectors: {path} cannot be read ({reason(error)}); check data.file") from error
    if len(table.inputs) == 0:
        raise UserError(f"data Vectors: {path} has no rows; give a file with some")
    if kind == "classes":
        refuse_empty_names(path, "Vectors", target[0] if csv_file else "y", table.targets)
    if client is not None and table.owners is not None:
        refuse_empty_names(path, "Vectors", client, table.owners)
    return table


def _read_csv(
    path: Path, target: Sequence[str], client: str | None, kind: Kind, categories: Sequence[str]
) -> VectorTable:
    header, rows = read_csv(path)
    if not target:
        raise UserError(f"data Vectors: data.target names the columns of {path} that are predicted; set it")
    wanted = [*target, *([client] if client is not None else [])]
    if kind == "classes" and len(target) > 1:
        raise UserError(
            f"data Vectors: classes are in one column, and data.target names {len(target)}; for columns of 0 and 1 set "
            "labels: true"
        )
    for column in categories:
        if column in wanted:
            raise UserError(f"data Vectors: data.categories names {column}, which is target or client; take it away")
    for column in (*wanted, *categories):
        if header.count(column) != 1:
            raise UserError(
                f"data Vectors: {path} has {header.count(column)} columns '{column}' (it has {', '.join(header)}); "
                "name one of them"
            )
    for line, row in enumerate(rows, start=2):
        if len(row) != len(header):
            raise UserError(f"data Vectors: {path}, line {line}: {len(row)} values for {len(header)} columns")
    index = {column: header.index(column) for column in wanted}
    numerical = [number for number, column in enumerate(header) if column not in (*wanted, *categories)]
    if not numerical and not categories:
        raise UserError(f"data Vectors: {path} has only columns of target and client; add columns to learn from")
    targets = [index[column] for column in target]
    names = np.array([row[targets[0]] for row in rows])
    predicted = names if kind == "classes" else _numbers(path, header, rows, targets)
    owners = None if client is None else np.array([row[index[client]] for row in rows])
    codes = [_codes([row[header.index(column)] for row in rows]) for column in categories]
    inputs = np.column_stack([*(code for code, _ in codes), _numbers(path, header, rows, numerical)])
    words = (*header, *(value for _, values in codes for value in values))
    return VectorTable(path.name, inputs, predicted, owners, kind, tuple(len(values) for _, values in codes), words)


def _read_npz(path: Path, client: str | None, kind: Kind) -> VectorTable:
    wanted = ["x", "y", *([client] if client is not None else [])]
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in wanted if name in file}
    except (ValueError, BadZipFile) as error:
        raise UserError(f"data Vectors: {path} cannot be read ({reason(error)}); save it by numpy.savez") from error
    for name in wanted:
        if name not in arrays:
            raise UserError(f"data Vectors: {path} has no array {name}; save it with one")
    x, y = arrays["x"], arrays["y"]
    if x.ndim != 2 or y.ndim not in (1, 2) or len(y) != len(x) or (kind == "classes" and y.ndim != 1):
        raise UserError(
            f"data Vectors: {path} has x {list(x.shape)} and y {list(y.shape)}; they are [N, d], and [N] or [N, k]"
        )
    for name, array in (("x", x), *([] if kind == "classes" else [("y", y)])):
        if array.dtype.kind not in ("fiub" if (name, kind) == ("y", "labels") else "fiu"):
            raise UserError(f"data Vectors: {path}: {name} is {array.dtype}; it must be numbers")
    owners = None if client is None else arrays[client]
    if owners is not None and owners.shape != (len(x),):
        raise UserError(f"data Vectors: {path}: {client} is {list(owners.shape)} for {len(x)} rows; give [N]")
    return VectorTable(path.name, x, y, owners, kind)


def _codes(values: Sequence[str]) -> tuple[np.ndarray, list[str]]:
    """Number values in alphabetical order from 1 on, an empty one as 0; return the numbers, float64 [N], and values."""
    names = {name: number for number, name in enumerate(sorted(set(values) - {""}), 1)}
    return np.array([names.get(value, 0) for value in values], np.float64), list(names)


def _numbers(path: Path, header: Sequence[str], rows: Sequence[Sequence[str]], columns: Sequence[int]) -> np.ndarray:
    """Convert some columns to float64 [N, columns]; raise if an entry is not a number."""
    numbers = np.empty((len(rows), len(columns)))
    for line, row in enumerate(rows):
        for position, column in enumerate(columns):
            try:
                numbers[line, position] = float(row[column])
            except ValueError:
                raise UserError(
                    f"data Vectors: {path}, line {line + 2}: {header[column]} is '{row[column][:40]}', not a number; "
                    "repair the line, or name the column in data.categories"
                ) from None
    return numbers
