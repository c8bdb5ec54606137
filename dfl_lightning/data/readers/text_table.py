"""A reader of tables in text files: names of columns and rows, whatever the separator, compressed or not."""

from __future__ import annotations

import csv
import gzip
import io
import itertools
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dfl_lightning.utils.errors import MissingData, UserError, nearest, reason, shortened

__all__ = ["SUFFIXES", "RawTable", "is_text_table", "only_column", "place_in", "read_text_table"]

SUFFIXES = (".csv", ".tsv", ".tab", ".txt")
"""Suffixes of text files; each may be followed by .gz."""

_SEPARATORS = (",", ";", "\t", "|")
_WORDS = {"\t": "tab", " ": "space"}
_LOOKED_AT = 200  # records that are read to find the separator


@dataclass(frozen=True)
class RawTable:
    """The columns of a table before they are interpreted.

    Args:
        name: name of the file, or of the data.
        header: names of the columns.
        columns: a column for each name, [N]: texts of a file, without blanks around them, or any type of an array.
        lines: the line of the file that each row begins in, counted from 1; None: rows do not come from a file.
        separator: what separates the columns of a file, in words for messages; empty if nothing does.
    """

    name: str
    header: tuple[str, ...]
    columns: tuple[np.ndarray, ...]
    lines: np.ndarray | None = None
    separator: str = ""

    @property
    def num_rows(self) -> int:
        """The number of rows N."""
        return len(self.columns[0]) if self.columns else 0

    def place(self, row: int) -> str:
        """Describe the place of a row, so that a user can look it up; see `place_in`.

        Args:
            row: index of the row, counted from 0.
        """
        return place_in(self.lines, row)

    def column(self, name: str) -> np.ndarray:
        """Return the column with a name, [N]."""
        return self.columns[self.header.index(name)]

    def rows(self, chosen: np.ndarray) -> RawTable:
        """Return the table with some rows only.

        Args:
            chosen: indices of the rows, or a mask, [N].
        """
        lines = None if self.lines is None else self.lines[chosen]
        return RawTable(self.name, self.header, tuple(column[chosen] for column in self.columns), lines, self.separator)


def place_in(lines: np.ndarray | None, row: int) -> str:
    """Describe the place of a row in a file, by its line if there are lines.

    Args:
        lines: the line of each row; None: rows do not come from a file.
        row: index of the row, counted from 0.

    Examples:
        >>> place_in(np.array([2, 5]), 1), place_in(None, 1)
        ('line 5', 'row 1 (counted from 0)')
    """
    return f"row {row} (counted from 0)" if lines is None else f"line {lines[row]}"


def is_text_table(path: Path) -> bool:
    """Return True if a file's name is that of a text file.

    Args:
        path: the file.

    Examples:
        >>> is_text_table(Path("a.TSV.gz")), is_text_table(Path("a.npz"))
        (True, False)
    """
    return path.name.lower().removesuffix(".gz").endswith(SUFFIXES)


def only_column(table: RawTable, what: str, name: str) -> None:
    """Raise if a table does not have exactly one column with a name.

    Args:
        table: the table.
        what: name of the data set and the option, for the message, such as `data Vectors: data.target`.
        name: name of the column.

    Raises:
        UserError: the column does not exist, or exists more than once.
    """
    count = table.header.count(name)
    if count > 1:
        raise UserError(f"{what}: {table.name} has {count} columns '{name}'; give each column a name of its own")
    if not count:
        has = shortened(", ".join(table.header), 300)
        remedy = "name one of them"
        if len(table.header) == 1 and table.separator:
            remedy += f", or set data.separator if columns are not separated by {table.separator}"
        raise UserError(
            f"{what}: {table.name} has no column '{name}'{nearest(name, table.header)} (it has {has}); {remedy}"
        )


def read_text_table(path: Path, data: str, separator: str | None = None) -> RawTable:
    """Read a text file with a line of column names.

    Empty lines, lines of separators only, blanks around names and values, and a byte order mark, which spreadsheets
    write, are ignored; a first line `sep=;` names the separator.

    Args:
        path: the file, which may be compressed (.gz).
        data: name of the data set, for messages.
        separator: a character, or `tab` or `space`; None finds it: the one of comma, semicolon, tab and bar that cuts
            all lines into equally many columns, or else blanks.

    Raises:
        MissingData: the file does not exist.
        UserError: it cannot be read, several separators are possible, or a line has another number of values.
    """
    what = f"data {data}: {path}"
    try:
        text = _text(path)
    except FileNotFoundError as error:
        raise MissingData(f"{what} does not exist; check data.file") from error
    except UnicodeDecodeError as error:
        raise UserError(
            f"{what} is not in UTF-8 ({reason(error)}); save it so, which spreadsheets call 'CSV UTF-8'"
        ) from error
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{what} cannot be read ({reason(error)}); check data.file") from error
    first = text.split("\n", 1)[0].strip().strip('"')
    skipped = 0
    if first.lower().startswith("sep=") and len(first) == 5:
        separator, text, skipped = separator or first[4], text.partition("\n")[2], 1
    try:
        by = _found(text, what) if separator is None else _character(separator)
        header, rows, lines = _records(text, by)
    except csv.Error as error:
        raise UserError(f"{what} cannot be read ({reason(error)}); check data.file") from error
    word = _WORDS.get(by, f"'{by}'")
    for row, line in zip(rows, lines, strict=True):
        if len(row) != len(header):
            raise UserError(
                f"{what}, line {line + skipped}: {len(row)} values for {len(header)} columns, separated by {word}; "
                "repair the line, or set data.separator"
            )
    columns = tuple(np.array(column, str) for column in zip(*rows, strict=True)) if rows else ()
    columns = columns or tuple(np.array([], str) for _ in header)
    return RawTable(path.name, tuple(header), columns, np.array(lines, np.int64) + skipped, word)


def _text(path: Path) -> str:
    """Read a file as text, with or without compression, in UTF-8 or, if it says so, in UTF-16."""
    if path.exists() and not path.is_file():
        raise OSError("it is a folder or a pipe")
    content = gzip.decompress(path.read_bytes()) if path.name.lower().endswith(".gz") else path.read_bytes()
    utf16 = content[:2] in (b"\xff\xfe", b"\xfe\xff")
    return content.decode("utf-16" if utf16 else "utf-8-sig")


def _character(separator: str) -> str:
    by = {word: character for character, word in _WORDS.items()}.get(separator, separator)
    if len(by) != 1 or by in '"\r\n':
        raise UserError(f"data.separator={separator!r}; it is one character, tab or space")
    return by


def _found(text: str, what: str) -> str:
    """Return the separator of a text's columns; the comma if there is a single column."""
    widths = {by: _widths(text, by) for by in _SEPARATORS}
    several = [by for by in _SEPARATORS if widths[by][0] > 1]
    if not several:
        return " " if _widths(text, " ")[0] > 1 and len(set(_widths(text, " "))) == 1 else ","
    alike = [by for by in several if len(set(widths[by])) == 1]
    if len(alike) > 1:
        names = " or ".join(f"{_WORDS.get(by, repr(by))} ({widths[by][0]} columns)" for by in alike)
        raise UserError(f"{what}: its columns may be separated by {names}; say so by data.separator")
    return alike[0] if alike else max(several, key=lambda by: widths[by][0])


def _widths(text: str, by: str) -> list[int]:
    """Return the numbers of values in the first lines of a text."""
    records = (row for row in _reader(text, by) if any(row))
    return [len(row) for row in itertools.islice(records, _LOOKED_AT)] or [0]


def _records(text: str, by: str) -> tuple[list[str], list[list[str]], list[int]]:
    """Cut a text into the names of columns, the rows, and the line in which each row begins, without empty rows."""
    reader = _reader(text, by)
    rows, lines, end = [], [], 0
    for row in reader:
        begin, end = end + 1, reader.line_num
        values = [value.strip() for value in row]
        if any(values):
            rows.append(values)
            lines.append(begin)
    return (rows[0], rows[1:], lines[1:]) if rows else ([], [], [])


def _reader(text: str, by: str) -> Any:
    """Return a csv reader of a text; if blanks separate, those at the ends of lines are none."""
    lines = io.StringIO(text, newline="")
    stripped = (line.strip() + "\n" for line in lines) if by == " " else lines
    return csv.reader(stripped, delimiter=by, skipinitialspace=True)
