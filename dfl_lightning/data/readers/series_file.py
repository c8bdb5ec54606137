"""A reader of time series in text and npz files, whose rows, in any order, name their client."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from dfl_lightning.data.readers.arrays import read_arrays
from dfl_lightning.data.readers.table_layout import refuse_empty_names
from dfl_lightning.data.readers.text_table import SUFFIXES, RawTable, is_text_table, only_column, read_text_table
from dfl_lightning.utils.errors import UserError

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


def read_series(
    path: Path, client: str, value: Sequence[str], time: str | None, separator: str | None = None
) -> SeriesTable:
    """Read series from a text file with a line of column names, or from an .npz file with an array for each name.

    Args:
        path: the file: .csv, .tsv, .tab or .txt, also compressed as .gz, or .npz.
        client: column that names the series of each row.
        value: columns of numbers.
        time: column that orders the rows of a series, numbers or ISO 8601 dates; None keeps the order of the file.
        separator: what separates the columns of a text file; None finds it.

    Returns:
        The series in the order of their names.

    Raises:
        MissingData: the file does not exist.
        UserError: the file cannot be read, lacks a column, or has values that are not finite numbers, or a time twice.
    """
    wanted = [client, *value, *([] if time is None else [time])]
    if len(set(wanted)) < len(wanted):
        raise UserError(f"data Series: client, value and time name a column twice ({', '.join(wanted)}); name it once")
    where = f"data Series: {path}"
    if is_text_table(path):
        table = read_text_table(path, "Series", separator)
        options = ["client", *["value"] * len(value), "time"]
        for option, name in zip(options, wanted, strict=False):
            only_column(table, f"data Series: data.{option}", name)
    elif path.suffix.lower() == ".npz":
        table = _read_npz(path, wanted)
    else:
        raise UserError(f"{where} is neither a text file ({', '.join(SUFFIXES)}) nor an .npz file; convert it to one")
    if not table.num_rows:
        raise UserError(f"{where} has no rows; give a file with some")
    columns = {name: table.column(name) for name in wanted}
    refuse_empty_names(where, client, columns[client], table.lines)
    values = np.stack([_numbers(table, where, name) for name in value], 1)
    names, owners = np.unique(columns[client].astype(str), return_inverse=True)
    times = np.arange(len(values)) if time is None else _times(table, where, time)
    order = np.lexsort((times, owners))
    twice = np.flatnonzero((np.diff(owners[order]) == 0) & (np.diff(times[order]) == 0))
    if len(twice):
        row = order[twice[0]]
        raise UserError(
            f"{where}: series {names[owners[row]]} has time {columns[time or client][row]} twice; give "
            "each time of a series once"
        )
    starts = np.flatnonzero(np.diff(owners[order])) + 1
    return SeriesTable(path.name, tuple(map(str, names)), tuple(np.split(values[order], starts)))


def _read_npz(path: Path, wanted: Sequence[str]) -> RawTable:
    arrays = read_arrays(path, "Series", wanted, "name arrays by data.client, data.value and data.time")
    for array in arrays.values():
        if array.ndim != 1 or array.shape != arrays[wanted[0]].shape[:1]:
            shapes = ", ".join(f"{other} {list(array.shape)}" for other, array in arrays.items())
            raise UserError(f"data Series: {path} has {shapes}; arrays are [N], with one entry a row each")
    return RawTable(path.name, tuple(arrays), tuple(arrays.values()))


def _numbers(table: RawTable, where: str, name: str) -> np.ndarray:
    """Convert a column to float64 [N]; raise if an entry is not a finite number."""
    column = table.column(name)
    if column.dtype.kind not in "biufU":
        raise UserError(f"{where}: {name} is {column.dtype}; it must be numbers")
    try:
        numbers = column.astype(np.float64)
    except ValueError:
        numbers = np.array([_number(entry) for entry in column])
    broken = np.flatnonzero(~np.isfinite(numbers))
    if len(broken):
        raise UserError(
            f"{where}: {name} of {table.place(int(broken[0]))} is '{str(column[broken[0]])[:40]}', not a finite "
            "number; repair the row, or remove it"
        )
    return numbers


def _number(entry: str) -> float:
    """Convert a text to a number, NaN if it is not one."""
    try:
        return float(entry)
    except ValueError:
        return float("nan")


def _times(table: RawTable, where: str, name: str) -> np.ndarray:
    """Convert a column of numbers or dates to numbers in the same order, [N]; raise if an entry is neither."""
    column = table.column(name)
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
            f"{where}: {name} of {table.place(int(broken[0]))} is '{str(column[broken[0]])[:40]}', and times are all "
            "numbers, or all dates such as 2020-01-31 or 2020-01-31T08:00 (ISO 8601); convert them"
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
