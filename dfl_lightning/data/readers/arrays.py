"""Readers of tables that are arrays already: npz files, and data frames of pandas."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from dfl_lightning.data.readers.text_table import RawTable
from dfl_lightning.utils.errors import MissingData, UserError, reason

__all__ = ["frame_table", "is_frame", "read_arrays"]


def read_arrays(path: Path, data: str, names: Sequence[str], named_by: str) -> dict[str, np.ndarray]:
    """Read arrays by name from an npz file; texts stored as bytes become texts.

    Args:
        path: the .npz file.
        data: name of the data set, for messages.
        names: names of the arrays.
        named_by: what the user does about an array that is not there, for messages.

    Raises:
        MissingData: the file does not exist.
        UserError: it cannot be read, is not an npz file, or lacks an array.
    """
    what = f"data {data}: {path}"
    arrays: dict[str, np.ndarray] = {}
    try:
        with path.open("rb") as file:
            begin = file.read(6)
        if begin == b"\x93NUMPY":
            raise UserError(f"{what} is a single array (.npy) by another name; save arrays by numpy.savez")
        if not begin.startswith(b"PK"):
            raise UserError(f"{what} is {'no npz file' if begin else 'empty'}; save arrays by numpy.savez")
        with np.load(path, allow_pickle=False) as archive:
            for name in names:
                if name in archive:
                    arrays[name] = archive[name]
    except FileNotFoundError as error:
        raise MissingData(f"{what} does not exist; check data.file") from error
    except (OSError, ValueError, EOFError, BadZipFile) as error:
        remedy = "save it by numpy.savez"
        if "allow_pickle" in str(error):
            remedy = "it holds Python objects; save texts as numpy.array(names, dtype=str), numbers as numbers"
        raise UserError(f"{what} cannot be read ({reason(error)}); {remedy}") from error
    for name in names:
        if name not in arrays:
            raise UserError(f"{what} has no array {name}; {named_by}")
    return {name: _as_text(array, f"{what}: {name}") for name, array in arrays.items()}


def is_frame(thing: object) -> bool:
    """Return True if an object is a data frame of pandas, which is not imported for the answer.

    Args:
        thing: any object.
    """
    return type(thing).__module__.partition(".")[0] == "pandas" and hasattr(thing, "columns")


def frame_table(frame: Any) -> RawTable:
    """Convert a data frame of pandas to columns; its index is not one of them.

    Args:
        frame: the `pandas.DataFrame`.
    """
    header = tuple(str(name).strip() for name in frame.columns)
    columns = tuple(_of_series(frame.iloc[:, i]) for i in range(len(header)))
    return RawTable("DataFrame", header, columns)


def _of_series(series: Any) -> np.ndarray:
    """Convert a column of a data frame: numbers, dates, or texts in which a missing value is empty."""
    kind = getattr(series.dtype, "kind", "O")
    missing = series.isna().to_numpy()
    if kind in "iufbM" and not missing.any():
        array: np.ndarray = series.to_numpy()
        if array.dtype.kind in "iufb":
            return array
    if kind in "iufb":
        return np.array(series.to_numpy(dtype="float64", na_value=float("nan")))
    values = [value.isoformat() if hasattr(value, "isoformat") else str(value).strip() for value in series]
    return np.where(missing, "", np.array(values, str)) if len(values) else np.array([], str)


def _as_text(array: np.ndarray, what: str) -> np.ndarray:
    """Decode texts that are stored as bytes; other arrays stay as they are."""
    if array.dtype.kind != "S":
        return array
    try:
        return np.char.decode(array, "utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{what} holds bytes that are not in UTF-8; save it as numpy.array(names, str)") from error
