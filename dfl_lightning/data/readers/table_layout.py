"""The meaning of a table's columns, and the content of a table that has been read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from dfl_lightning.data.readers.columns import is_missing
from dfl_lightning.data.readers.text_table import place_in
from dfl_lightning.utils.errors import UserError

__all__ = ["Kind", "Missing", "TableOptions", "VectorTable", "one_of_each", "refuse_empty_names", "rows_with_all"]

Kind = Literal["numbers", "classes", "labels"]
Missing = Literal["refuse", "drop", "mean", "indicator"]


@dataclass(frozen=True)
class TableOptions:
    """The meaning of a table's columns.

    Args:
        target: columns that are predicted; in an npz file it is the array y.
        client: column, or array, that names the client of each row; None: there is none.
        kind: kind of the targets.
        categories: columns whose values are names, not numbers.
        drop: columns that are left out.
        dates: columns of dates, which become days since 1970.
        date_format: form of the dates as in `datetime.strptime`; None: ISO 8601.
        missing: what is done about missing values; see `Vectors`.
        separator: what separates the columns of a file; None finds it.
        decimal: the character before decimals.
    """

    target: Sequence[str] = ()
    client: str | None = None
    kind: Kind = "numbers"
    categories: Sequence[str] = ()
    drop: Sequence[str] = ()
    dates: Sequence[str] = ()
    date_format: str | None = None
    missing: Missing = "refuse"
    separator: str | None = None
    decimal: str = "."

    @property
    def of_text(self) -> bool:
        """True if something is set that only a table with names of columns has."""
        return bool(self.target or self.categories or self.drop or self.dates or self.date_format or self.separator)


@dataclass(frozen=True)
class VectorTable:
    """The content of a table.

    Args:
        name: name of the file, or of the data.
        inputs: [N, d]; categorical columns come first, as numbers of their values from 1 on, 0 for an empty value; NaN
            is a missing number, and the last columns, `indicators`, are 1 where one is missing.
        targets: numbers or labels (0 or 1), [N] or [N, k], or names of classes, [N].
        owners: client of each row, [N] of any type; None if the file does not name it.
        kind: kind of the targets.
        categories: number of values of each categorical column.
        words: names of the columns, and the values of each categorical column in the order of their numbers.
        indicators: number of the last columns of inputs, which say where a value of another column is missing.
        columns: names of the inputs, for messages; empty if they have none.
        lines: line of each row in the file; None if rows do not come from a file.
        remarks: remarks for the user.
    """

    name: str
    inputs: np.ndarray
    targets: np.ndarray
    owners: np.ndarray | None = None
    kind: Kind = "numbers"
    categories: tuple[int, ...] = ()
    words: tuple[str, ...] = ()
    indicators: int = 0
    columns: tuple[str, ...] = ()
    lines: np.ndarray | None = None
    remarks: list[str] = field(default_factory=list)

    def place(self, row: int) -> str:
        """Describe the place of a row, so that a user can look it up.

        Args:
            row: index of the row, counted from 0.
        """
        return place_in(self.lines, row)

    def input_name(self, column: int) -> str:
        """Name a column of the inputs for messages.

        Args:
            column: its index.
        """
        return f"'{self.columns[column]}'" if self.columns else f"column {column} of x (counted from 0)"


def refuse_empty_names(where: str, column: str, names: np.ndarray, lines: np.ndarray | None) -> None:
    """Raise if a row has no name of its client or class, as all such rows would be one client or class.

    Args:
        where: name of the data set and the file, for the message.
        column: column with the names, for the message.
        names: names of all rows, [N]; a missing name is an empty text or NaN.
        lines: the line of each row; None: rows do not come from a file.

    Raises:
        UserError: a name is missing; the message tells the first such row.
    """
    empty = is_missing(names, names=True)
    if empty.any():
        place = place_in(lines, int(np.flatnonzero(empty)[0]))
        raise UserError(f"{where}: {column} of {place} is empty; fill it in, or remove the row")


def one_of_each(numbers: np.ndarray) -> np.ndarray | None:
    """Return the column that holds the 1 of each row, int64 [N]; None unless the others hold 0.

    Args:
        numbers: numbers or bool, [N, C].

    Examples:
        >>> one_of_each(np.array([[0, 1], [1, 0]])), one_of_each(np.array([[1, 1], [1, 0]]))
        (array([1, 0]), None)
    """
    is_one = numbers == 1
    return is_one.argmax(1) if (is_one | (numbers == 0)).all() and (is_one.sum(1) == 1).all() else None


def rows_with_all(unusable: Sequence[np.ndarray], where: str, layout: TableOptions, remarks: list[str]) -> np.ndarray:
    """Return which rows are kept, bool [N], and add a remark if some are not.

    Args:
        unusable: for each column that must have a value, which rows lack it, bool [N].
        where: name of the data set and the file, for the message.
        layout: what the columns mean.
        remarks: remarks for the user.

    Raises:
        UserError: none is kept.
    """
    dropped: np.ndarray = np.any(unusable, axis=0)
    if dropped.all():
        raise UserError(
            f"{where}: each of the {len(dropped)} rows lacks a value, so that data.missing: {layout.missing} leaves "
            "none; leave empty columns out"
        )
    if dropped.any():
        about = "a value" if layout.missing == "drop" else "a target or a client"
        remarks.append(f"data.missing: {int(dropped.sum())} of {len(dropped)} rows lack {about} and are left out")
    return ~dropped
