"""A reader of tables in text files, npz files and data frames, with inputs and targets in each row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dfl_lightning.data.readers.arrays import frame_table, is_frame
from dfl_lightning.data.readers.table_arrays import of_arrays
from dfl_lightning.data.readers.table_columns import of_columns
from dfl_lightning.data.readers.table_layout import TableOptions, VectorTable
from dfl_lightning.data.readers.text_table import SUFFIXES, is_text_table, read_text_table
from dfl_lightning.utils.errors import UserError

__all__ = ["read_table"]


def read_table(file: Any, layout: TableOptions) -> VectorTable:
    """Read a table from a text file, an npz file or a data frame.

    Args:
        file: the path of the file, or a `pandas.DataFrame`.
        layout: what the columns mean.

    Raises:
        MissingData: the file does not exist.
        UserError: the file cannot be read, has another layout, or values that are not numbers.
    """
    if is_frame(file):
        return of_columns(frame_table(file), "data Vectors: DataFrame", layout)
    if hasattr(file, "to_pandas"):
        raise UserError("data Vectors: data.file is a data frame of another library; give its to_pandas()")
    if not isinstance(file, (str, Path)):
        raise UserError(f"data Vectors: data.file is a {type(file).__name__}; give the path of a file, or a DataFrame")
    path = Path(file)
    where = f"data Vectors: {path}"
    if is_text_table(path):
        return of_columns(read_text_table(path, "Vectors", layout.separator), where, layout)
    if path.suffix.lower() != ".npz":
        raise UserError(f"{where} is neither a text file ({', '.join(SUFFIXES)}) nor an .npz file; convert it to one")
    if layout.of_text:
        raise UserError(
            "data Vectors: target, categories, drop, dates, date_format and separator are of files with names of "
            "columns; an npz file's targets are its array y, and its inputs are numbers"
        )
    return of_arrays(path, where, layout)
