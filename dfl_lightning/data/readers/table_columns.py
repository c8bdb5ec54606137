"""The inputs, targets and clients of a table with names of columns."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np

from dfl_lightning.data.readers.columns import codes_of, dates_of, is_missing, numbers_of
from dfl_lightning.data.readers.table_layout import (
    TableOptions,
    VectorTable,
    one_of_each,
    refuse_empty_names,
    rows_with_all,
)
from dfl_lightning.data.readers.text_table import RawTable, only_column
from dfl_lightning.utils.errors import UserError

__all__ = ["of_columns"]

_UNNAMED = re.compile(r"Unnamed: \d+")  # as pandas names a column without a name
_MANY = 3  # rows from which on a column 0, 1, 2, … is taken for the numbers of the rows
_DATA = "data Vectors"
_ABOUT_TARGETS = {
    "numbers": "repair the line, or set data.classes: true if data.target names a class",
    "labels": "labels are 0 or 1; repair the line",
    "classes": "classes are in one column, or in columns of 0 and 1; let data.target name such ones",
}
"""Remedies for a target that is not a number, by the kind of the targets."""


def of_columns(raw: RawTable, where: str, layout: TableOptions) -> VectorTable:
    """Convert the columns of a table.

    Args:
        raw: the table.
        where: name of the data set and the file, for messages.
        layout: what the columns mean.

    Raises:
        UserError: the table has another layout, lacks values, or has others than it should.
    """
    raw = _named_columns(raw, where, layout)
    _check_names(raw, where, layout)
    wanted = [*layout.target, *([layout.client] if layout.client is not None else [])]
    numerical = [name for name in raw.header if name not in (*wanted, *layout.categories)]
    if not numerical and not layout.categories:
        raise UserError(f"{where} has only columns of target and client; add columns to learn from")
    names = layout.kind == "classes" and len(layout.target) == 1
    values = {
        name: dates_of(raw, name, where, layout.date_format)
        if name in layout.dates
        else numbers_of(raw, name, where, layout.decimal, _ABOUT_TARGETS[layout.kind] if name in wanted else "")
        for name in (*numerical, *([] if names else layout.target))
    }
    remarks: list[str] = []
    kept = _rows_to_keep(raw, where, layout, values, remarks)
    raw, values = raw.rows(kept), {name: column[kept] for name, column in values.items()}
    if names:
        targets = raw.column(layout.target[0])
        refuse_empty_names(where, layout.target[0], targets, raw.lines)
    else:
        targets = np.column_stack([values[name] for name in layout.target])
        if layout.kind == "classes":
            targets = _names_of_one_hot(targets, layout.target, where)
    owners = None if layout.client is None else raw.column(layout.client)
    if owners is not None:
        refuse_empty_names(where, str(layout.client), owners, raw.lines)
    codes = [codes_of(raw.column(name)) for name in layout.categories]
    holes = [name for name in numerical if np.isnan(values[name]).any()] if layout.missing == "indicator" else []
    columns = [*(code for code, _ in codes), *(values[name] for name in numerical)]
    for name in numerical:
        if _counts_rows(values[name]):
            remarks.append(f"data.file: the input '{name}' only counts the rows; data.drop: ['{name}'] leaves it out")
    return VectorTable(
        raw.name,
        np.column_stack([*columns, *(np.isnan(values[name]).astype(np.float64) for name in holes)]),
        targets,
        owners,
        layout.kind,
        tuple(len(known) for _, known in codes),
        (*raw.header, *(value for _, known in codes for value in known)),
        len(holes),
        (*layout.categories, *numerical, *(f"{name} is missing" for name in holes)),
        raw.lines,
        remarks,
    )


def _check_names(raw: RawTable, where: str, layout: TableOptions) -> None:
    """Raise if an option names a column that is not there, or that another option names."""
    if not layout.target:
        raise UserError(f"{_DATA}: data.target names the columns of {raw.name} that are predicted; set it")
    wanted = [*layout.target, *([layout.client] if layout.client is not None else [])]
    for option, names in (("categories", layout.categories), ("dates", layout.dates), ("drop", layout.drop)):
        for name in names:
            if name in (*layout.target, layout.client) and (option != "dates" or name == layout.client):
                raise UserError(f"{_DATA}: data.{option} names {name}, which is target or client; take it away")
            if option != "categories" and name in layout.categories:
                raise UserError(f"{_DATA}: data.{option} and data.categories both name {name}; take it out of one")
            if option == "drop" and name in layout.dates:
                raise UserError(f"{_DATA}: data.drop and data.dates both name {name}; take it out of one")
    for option, names in (
        ("target", layout.target),
        ("client", wanted[len(layout.target) :]),
        ("categories", layout.categories),
        ("dates", layout.dates),
    ):
        for name in names:
            only_column(raw, f"{_DATA}: data.{option}", name)
    if not raw.num_rows:
        raise UserError(f"{where} has no rows; give a file with some")


def _named_columns(raw: RawTable, where: str, layout: TableOptions) -> RawTable:
    """Return the table without dropped columns, and without empty ones that have no name.

    Raises:
        UserError: another column has no name, or two have one name.
    """
    header = [name or f"column {number}" for number, name in enumerate(raw.header, 1)]
    whole = RawTable(raw.name, tuple(header), raw.columns, raw.lines, raw.separator)
    for name in layout.drop:
        if name not in header:
            only_column(whole, f"{_DATA}: data.drop", name)
    used = {*layout.target, *layout.categories, *layout.dates, layout.client}
    kept = []
    for number, name in enumerate(header):
        has_no_name = not raw.header[number] or _UNNAMED.fullmatch(name) is not None
        if (name in layout.drop and name not in used) or (
            not raw.header[number] and is_missing(raw.columns[number], names=True).all()
        ):
            continue
        if has_no_name and name not in used:
            raise UserError(
                f"{where}: column {number + 1} has no name, like the numbers of rows that spreadsheets and pandas "
                f"write; leave it out by data.drop: ['{name}'], or name it in the file"
            )
        kept.append(number)
    names = [header[number] for number in kept]
    for name in names:
        if names.count(name) > 1:
            raise UserError(
                f"{where} has {names.count(name)} columns '{name}'; give each a name of its own, or leave them out by "
                f"data.drop: ['{name}']"
            )
    return RawTable(raw.name, tuple(names), tuple(raw.columns[number] for number in kept), raw.lines, raw.separator)


def _rows_to_keep(
    raw: RawTable, where: str, layout: TableOptions, values: Mapping[str, np.ndarray], remarks: list[str]
) -> np.ndarray:
    """Return which rows are kept, bool [N]; raise if a number is missing and `missing` is `refuse`."""
    holes = {name: np.isnan(column) for name, column in values.items()}
    if layout.missing == "refuse":
        _refuse_holes(raw, where, holes, layout)
        return np.ones(raw.num_rows, bool)
    named = [name for name in (layout.client, *layout.target) if name is not None and name not in values]
    needed = list(layout.target)
    if layout.missing == "drop":
        named, needed = [*named, *layout.categories], list(values)
    unusable = [*(is_missing(raw.column(name), names=True) for name in named)]
    return rows_with_all([*unusable, *(holes[name] for name in needed if name in holes)], where, layout, remarks)


def _refuse_holes(raw: RawTable, where: str, holes: Mapping[str, np.ndarray], layout: TableOptions) -> None:
    """Raise if a number is missing; the message names the column, the first row, and the ways out."""
    for name, empty in holes.items():
        if not empty.any():
            continue
        remedy = "set data.missing to mean, indicator or drop, or fill them in"
        if name in layout.target:
            remedy = "set data.missing to drop, which leaves such rows out, or fill them in"
        elif empty.all():
            remedy = f"leave the column out by data.drop: ['{name}']"
        raise UserError(
            f"{where}: {int(empty.sum())} of {len(empty)} values of '{name}' are missing, the first in "
            f"{raw.place(int(np.flatnonzero(empty)[0]))}; {remedy}"
        )


def _names_of_one_hot(numbers: np.ndarray, names: Sequence[str], where: str) -> np.ndarray:
    """Return the name of the column that holds the 1 of each row, [N]; raise if the others do not hold 0."""
    columns = one_of_each(numbers)
    if columns is None:
        raise UserError(
            f"{where}: classes are in one column, or in columns of which one is 1 in each row and the others are 0, "
            f"and the {len(names)} of data.target are not so; for several labels a row set labels: true instead of "
            "classes"
        )
    return np.array(names, str)[columns]


def _counts_rows(column: np.ndarray) -> bool:
    """Return True if a column is 0, 1, 2 and so on, or 1, 2, 3 and so on."""
    return len(column) >= _MANY and bool(column[0] in (0, 1)) and bool((np.diff(column) == 1).all())
