"""The meaning of a table's columns: numbers, dates, names, and what is missing."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial

import numpy as np

from dfl_lightning.data.readers.text_table import RawTable
from dfl_lightning.utils.errors import UserError

__all__ = ["codes_of", "dates_of", "is_missing", "numbers_of", "refuse_merged"]

MISSING = frozenset(("", "na", "n/a", "#n/a", "#na", "<na>", "nan", "-nan", "null", "none", "nil", "?", "-", "--"))
"""Texts, in lower case, that stand for a missing number or date, as those of pandas do; `?` is that of UCI's tables."""

_BOOLS = {"true": 1.0, "false": 0.0}
_WHOLE = re.compile(r"[+-]?\d+")
_DATE = re.compile(r"(\d{1,2})([./-])(\d{1,2})\2(\d{4}|\d{2})( .*)?|\d{4}([-/.])\d{1,2}\6\d{1,2}.*")
_DAY = 86400.0
_LARGEST = 2.0**53  # from here on, 64-bit floating-point numbers leave whole numbers out


def is_missing(column: np.ndarray, names: bool = False) -> np.ndarray:
    """Return which entries of a column are missing, bool [N].

    Args:
        column: texts or numbers, [N].
        names: True if the texts are names; then only an empty one is missing.
    """
    if column.dtype.kind in "US":
        texts = np.char.lower(np.char.strip(column))
        return np.isin(texts, [""] if names else sorted(MISSING))
    return column != column if column.dtype.kind == "f" else np.zeros(len(column), bool)


def numbers_of(table: RawTable, name: str, where: str, decimal: str = ".", otherwise: str = "") -> np.ndarray:
    """Convert a column to numbers, float64 [N], NaN where one is missing; `true` and `false` are 1 and 0.

    Args:
        table: the table.
        name: name of the column.
        where: name of the data set and the file, for messages.
        decimal: the character before decimals in texts.
        otherwise: remedy for a column of names, for messages; empty: it can be listed as one of names, or left out.

    Raises:
        UserError: an entry is not a number, or numbers are so large that different ones would become one.
    """
    column = table.column(name)
    if column.dtype.kind in "iufb":
        refuse_merged(column, f"{where}: {name}")
        return column.astype(np.float64)
    texts = column if decimal == "." else np.char.replace(column, decimal, ".")
    try:
        numbers = texts.astype(np.float64)  # the usual case, in a fraction of the time
    except ValueError:
        missing, numbers = is_missing(column), np.full(len(column), np.nan)
        for row in np.flatnonzero(~missing):
            try:
                numbers[row] = _number(texts[row])
            except ValueError:
                raise UserError(
                    f"{where}, {table.place(int(row))}: {name} is '{column[row][:40]}', not a number; "
                    f"{_remedy(column, name, decimal, otherwise)}"
                ) from None
    if (np.abs(numbers) >= _LARGEST).any():
        whole = {int(text) for text in texts.tolist() if _WHOLE.fullmatch(text)}
        _refuse_fewer(len(whole), len({float(number) for number in whole}), f"{where}: {name}")
    return numbers


def _number(text: str) -> float:
    number = _BOOLS.get(text.lower())
    return float(text) if number is None else number


def refuse_merged(values: np.ndarray, what: str) -> None:
    """Raise if whole numbers are so large that different ones become one in 64-bit floating point.

    Args:
        values: numbers, of any shape.
        what: name of the data set, the file and the column, for the message.

    Raises:
        UserError: some do.
    """
    if values.dtype.kind not in "iu" or not values.size or max(abs(int(values.max())), abs(int(values.min()))) < 2**53:
        return
    for column in values.reshape(len(values), -1).T:
        distinct = np.unique(column)
        _refuse_fewer(len(distinct), len(np.unique(distinct.astype(np.float64))), what)


def _refuse_fewer(before: int, after: int, what: str) -> None:
    if after < before:
        raise UserError(
            f"{what} has whole numbers beyond 2^53, and in 64-bit floating point {before} of them become {after}; if "
            "they are names, list the column in data.categories, or leave it out by data.drop"
        )


def dates_of(table: RawTable, name: str, where: str, form: str | None = None) -> np.ndarray:
    """Convert a column of dates to days since 1970-01-01, float64 [N], NaN where one is missing.

    A date without a time zone is in UTC.

    Args:
        table: the table.
        name: name of the column.
        where: name of the data set and the file, for messages.
        form: the form of the dates as in `datetime.strptime`; None: ISO 8601.

    Raises:
        UserError: an entry is not a date of that form.
    """
    column = table.column(name)
    if column.dtype.kind in "iufb":
        raise UserError(f"{where}: {name} holds numbers, no dates; take it out of data.dates")
    read: Callable[[str], datetime] = datetime.fromisoformat if form is None else lambda text: _parsed(text, form)
    missing, days = is_missing(column), np.full(len(column), np.nan)
    for row in np.flatnonzero(~missing):
        try:
            date = read(str(column[row]))
        except ValueError:
            used = "as in ISO 8601 (2020-01-31)" if form is None else f"as in data.date_format '{form}'"
            raise UserError(
                f"{where}, {table.place(int(row))}: {name} is '{column[row][:40]}', not a date {used}; "
                f"{_named(_forms_of(column[~missing].tolist())) or 'repair it, or leave the column out by data.drop'}"
            ) from None
        days[row] = (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp() / _DAY
    return days


def _parsed(text: str, form: str) -> datetime:
    return datetime.strptime(text, form)


def codes_of(column: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """Number the names in a column in alphabetical order from 1 on, an empty one as 0.

    Args:
        column: names, [N].

    Returns:
        The numbers, float64 [N], and the names.
    """
    values = column.tolist() if column.dtype.kind == "U" else [("" if v != v else str(v)) for v in column.tolist()]
    names = {name: number for number, name in enumerate(sorted(set(values) - {""}), 1)}
    return np.array([names.get(value, 0) for value in values], np.float64), list(names)


def _remedy(column: np.ndarray, name: str, decimal: str, otherwise: str) -> str:
    """Say what can be done about a column that holds something else than numbers."""
    texts = [text for text in column[~is_missing(column)].tolist() if not _is_number(text)]
    if decimal == "." and all(_is_number(text.replace(",", ".")) for text in texts):
        return "if the comma stands before decimals, set data.decimal: ','"
    if all(_DATE.fullmatch(text) for text in texts):
        forms = _forms_of(texts)
        return f"set data.dates: ['{name}']{' and ' * bool(forms)}{_named(forms).removeprefix('set ')}"
    if otherwise:
        return otherwise
    dropped = f"leave the column out by data.drop: ['{name}']"
    if len(texts) * 2 < len(column):
        return f"repair the line, or {dropped}"
    return f"set data.categories: ['{name}'] if its values are names, or {dropped}"


def _is_number(text: str) -> bool:
    try:
        _number(text)
    except ValueError:
        return False
    return True


def _named(forms: Sequence[str]) -> str:
    """Name the option for the form of dates; empty if they are as in ISO 8601, or of no known form."""
    return f"set data.date_format: {' or '.join(repr(form) for form in forms)}" if forms else ""


def _forms_of(texts: Sequence[str]) -> list[str]:
    """Find the forms that all dates fit, as in `datetime.strptime`; none for those of ISO 8601."""
    if all(_reads(datetime.fromisoformat, text) for text in texts):
        return []
    days = ["%d.%m.%Y", *(f"%{a}{sign}%{b}{sign}%Y" for sign in "/-" for a, b in ("dm", "md")), "%Y/%m/%d", "%Y.%m.%d"]
    times = ["", " %H:%M", " %H:%M:%S"]
    forms = [form.replace("%Y", year) + time for form in days for year in ("%Y", "%y") for time in times]
    return [form for form in forms if all(_reads(partial(_parsed, form=form), text) for text in texts)]


def _reads(read: Callable[[str], datetime], text: str) -> bool:
    try:
        read(text)
    except ValueError:
        return False
    return True
