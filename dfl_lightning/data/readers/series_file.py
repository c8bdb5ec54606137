"""A reader of time series in CSV and npz files, whose rows, in any order, name their client."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from dfl_lightning.data.readers.vector_table import place_in, read_csv, refuse_empty_names
from dfl_lightning.utils.errors import MissingData, UserError, reason

__all__ = ["SeriesTable", "read_series"]


@dataclass(frozen=True)
class SeriesTable:
    """The time series of all clients.

    Attributes:
        name: name of the data.
        names: name of each series.
        values: values of each series in the order of time, float64 [T, C]; T differs between series.
    """

    name: str
    names: tuple[str, ...]
    values: tuple[np.ndarray, ...]


def read_series(path: Path, client: str, value: Sequence[str], time: str | None) -> SeriesTable:
    """Read series from a .csv file with a line of column names, or from an .npz file with an array for each name.

    Args:
        path: the .csv or .npz file.
        client: column that names the series of each row.
        value: columns of numbers.
        time: column that orders the rows of a series, numbers or ISO 8601 dates; None keeps the order of the file.

    Returns:
        The series in the order of their names.

    Raises:
        UserError: the file cannot be read, lacks a column, or has values that are not finite numbers, or a time twice.
    """
    wanted = [client, *value, *([] if time is None else [time])]
    if len(set(wanted)) < len(wanted):
        raise UserError(f"data Series: client, value and time name a column twice ({', '.join(wanted)}); name it once")
    readers = {".csv": _read_csv, ".npz": _read_npz}
    if path.suffix.lower() not in readers:
        raise UserError(f"data Series: {path} is neither a .csv nor an .npz file; convert it to one of them")
    try:
        columns = readers[path.suffix.lower()](path, wanted)
    except FileNotFoundError as error:
        raise MissingData(f"data Series: {path} does not exist; check data.file") from error
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"data Series: {path} cannot be read ({reason(error)}); check data.file") from error
    if not len(columns[client]):
        raise UserError(f"data Series: {path} has no rows; give a file with some")
    refuse_empty_names(path, "Series", client, columns[client])
    values = np.stack([_numbers(path, name, columns[name]) for name in value], 1)
    names, owners = np.unique(columns[client].astype(str), return_inverse=True)
    times = np.arange(len(values)) if time is None else _times(path, time, columns[time])
    order = np.lexsort((times, owners))
    twice = np.flatnonzero((np.diff(owners[order]) == 0) & (np.diff(times[order]) == 0))
    if len(twice):
        row = order[twice[0]]
        raise UserError(
            f"data Series: {path}: series {names[owners[row]]} has time {columns[time or client][row]} twice; give "
            "each time of a series once"
        )
    starts = np.flatnonzero(np.diff(owners[order])) + 1
    return SeriesTable(path.name, tuple(map(str, names)), tuple(np.split(values[order], starts)))


def _read_csv(path: Path, wanted: Sequence[str]) -> Mapping[str, np.ndarray]:
    header, rows = read_csv(path)
    for name in wanted:
        if header.count(name) != 1:
            raise UserError(
                f"data Series: {path} has {header.count(name)} columns '{name}' (it has {', '.join(header)}); name "
                "columns by data.client, data.value and data.time"
            )
    for line, row in enumerate(rows, start=2):
        if len(row) != len(header):
            raise UserError(f"data Series: {path}, line {line}: {len(row)} values for {len(header)} columns")
    return {name: np.array([row[header.index(name)] for row in rows], str) for name in wanted}


def _read_npz(path: Path, wanted: Sequence[str]) -> Mapping[str, np.ndarray]:
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in wanted if name in file}
    except (ValueError, EOFError, BadZipFile) as error:
        raise UserError(f"data Series: {path} cannot be read ({reason(error)}); save it by numpy.savez") from error
    for name in wanted:
        if name not in arrays:
            raise UserError(
                f"data Series: {path} has no array {name}; name arrays by data.client, data.value and data.time"
            )
        if arrays[name].ndim != 1 or arrays[name].shape != arrays[wanted[0]].shape[:1]:
            shapes = ", ".join(f"{other} {list(array.shape)}" for other, array in arrays.items())
            raise UserError(f"data Series: {path} has {shapes}; arrays are [N], with one entry a row each")
    return {
        name: np.char.decode(array, "utf-8") if array.dtype.kind == "S" else array for name, array in arrays.items()
    }


def _numbers(path: Path, name: str, column: np.ndarray) -> np.ndarray:
    """Convert a column to float64 [N]; raise if an entry is not a finite number."""
    if column.dtype.kind not in "biufU":
        raise UserError(f"data Series: {path}: {name} is {column.dtype}; it must be numbers")
    try:
        numbers = column.astype(np.float64)
    except ValueError:
        numbers = np.array([_number(entry) for entry in column])
    broken = np.flatnonzero(~np.isfinite(numbers))
    if len(broken):
        raise UserError(
            f"data Series: {path}: {name} of {place_in(path.name, broken[0])} is '{str(column[broken[0]])[:40]}', not "
            "a finite number; repair the row, or remove it"
        )
    return numbers


def _number(entry: str) -> float:
    """Convert a text to a number, NaN if it is not one."""
    try:
        return float(entry)
    except ValueError:
        return float("nan")


def _times(path: Path, name: str, column: np.ndarray) -> np.ndarray:
    """Convert a column of numbers or dates to numbers in the same order, [N]; raise if an entry is neither."""
    times = _whole(column)
    if times is not None:
        broken = np.flatnonzero(np.isnat(column)) if column.dtype.kind in "mM" else np.empty(0, np.int64)
    else:
        times = np.array([_number(entry) for entry in column])
        broken = np.flatnonzero(~np.isfinite(times))
        dates = np.array([_seconds(str(entry)) for entry in column]) if len(broken) else times
        if np.isnan(dates).sum() < len(broken):  # more entries are dates than numbers
            times, broken = dates, np.flatnonzero(np.isnan(dates))
    if len(broken):
        raise UserError(
            f"data Series: {path}: {name} of {place_in(path.name, broken[0])} is '{str(column[broken[0]])[:40]}', and "
            "times are all numbers, or all dates such as 2020-01-31 or 2020-01-31T08:00 (ISO 8601); convert them"
        )
    return times


def _whole(column: np.ndarray) -> np.ndarray | None:
    """Return integers, and numpy's dates as integers, which float64 would round; None for other columns."""
    if column.dtype.kind in "iu":
        return column
    try:
        return column.astype(np.int64) if column.dtype.kind in "mMU" else None
    except (ValueError, OverflowError):
        return None


def _seconds(entry: str) -> float:
    """Convert a date to seconds since 1970, NaN if it is not one; without a time zone it is in UTC."""
    try:
        date = datetime.fromisoformat(entry)
    except ValueError:
        return float("nan")
    return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()
