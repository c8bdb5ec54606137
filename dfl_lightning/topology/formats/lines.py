"""Text files with columns: their comments, their separator, and the cells of each line."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable
from dataclasses import dataclass

from dfl_lightning.topology.formats.contradictions import ContradictionError

_DIRECTED = re.compile(r"#\s*directed graph|%\s*asym\b", re.IGNORECASE)
"""The first comments of directed graphs in the collections SNAP and KONECT."""

_NAMES = {"\t": "tab", ";": "semicolon", ",": "comma"}


@dataclass(frozen=True)
class Row:
    """A line of a file.

    Attributes:
        line: its number in the file, from 1.
        cells: its cells, without empty ones at the end.
        attributes: text in braces at its end; empty if there is none.
        quoted: whether it has a quotation mark.
    """

    line: int
    cells: list[str]
    attributes: str = ""
    quoted: bool = False


@dataclass(frozen=True)
class Lines:
    """The lines of a file without comments and empty ones.

    Attributes:
        rows: the lines.
        separator: what separates their cells: a tab, a semicolon, a comma, or a blank for any blanks and tabs.
        directed: whether a comment says that the graph is directed.
    """

    rows: list[Row]
    separator: str
    directed: bool

    def number(self, cell: str) -> float:
        """Read a number, which may have a decimal comma where semicolons separate cells.

        Args:
            cell: a cell.

        Raises:
            ValueError: it is not a number.
        """
        return float(cell.replace(",", ".") if self.separator == ";" else cell)


def split_lines(data: bytes) -> Lines:
    """Find the separator of a file, and split its lines into cells.

    Lines that begin with `#` or `%` are comments. Where blanks separate cells, a `#` after a blank begins one too.
    Cells may be in double quotation marks.

    Args:
        data: content of the file, UTF-8.

    Raises:
        ContradictionError: the file is not UTF-8, a quotation mark is not closed, or `#` is in the middle of a name.

    Examples:
        >>> [row.cells for row in split_lines(b"# two links" + bytes([10]) + b"Ward A,Ward B, 0.5").rows]
        [['Ward A', 'Ward B', '0.5']]
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ContradictionError(f"the text is not UTF-8 ({error.reason} at byte {error.start}); save it so") from None
    kept = [(number, line.strip(" \r")) for number, line in enumerate(text.splitlines(), start=1)]
    comments = [line for _, line in kept if line[:1] in ("#", "%")]
    kept = [(number, line) for number, line in kept if line.strip() and line[0] not in "#%"]
    separator = _separator(line for _, line in kept)
    rows = [_row(number, line, separator) for number, line in kept]
    return Lines([row for row in rows if row.cells], separator, any(_DIRECTED.match(line) for line in comments))


def check_lone_names(lines: Lines, names: set[str]) -> None:
    """Raise if a line without the file's separator may be a link or a single client whose name has a blank.

    Args:
        lines: the lines of the file.
        names: the names that other lines have.

    Raises:
        ContradictionError: there is such a line; the message has both ways to write it.
    """
    if lines.separator == " ":
        return
    for row in lines.rows:
        if len(row.cells) == 1 and " " in row.cells[0] and not row.quoted and row.cells[0] not in names:
            name = row.cells[0][:40]
            raise ContradictionError(
                f'line {row.line} has no {_NAMES[lines.separator]}, as others have; if {name} is one client, write "'
                f'{name}" in quotation marks, otherwise separate the names as in the other lines'
            )


def _separator(lines: Iterable[str]) -> str:
    """Return the separator of all lines; quoted texts and attributes in braces are not looked at."""
    bare = [re.sub(r'"[^"]*"', "q", line.partition("{")[0]) for line in lines]
    for mark in (";", ","):
        if any(mark in line for line in bare):
            return mark
    with_tabs = [line for line in bare if "\t" in line.strip()]
    # If no name has a blank, tabs and blanks are the same.
    return "\t" if any(" " in cell.strip() for line in with_tabs for cell in line.split("\t")) else " "


def _row(number: int, line: str, separator: str) -> Row:
    attributes = ""
    if line.endswith("}") and "{" in line:
        line, _, rest = line.partition("{")
        attributes = "{" + rest
    if separator == " ":
        line = re.sub(r'"[^"]*"|\t', lambda found: " " if found[0] == "\t" else found[0], line)
        line = _without_comment(line, number).strip()
    try:
        cells = next(csv.reader([line], delimiter=separator, skipinitialspace=True, strict=True), [])
    except csv.Error:
        what = "a quotation mark that is not closed, or text after a closed one" if '"' in line else "a very long cell"
        raise ContradictionError(f'line {number} has {what}; write names as name or "name"') from None
    cells = [cell.strip() for cell in cells]
    if separator == "\t":
        cells = [cell for cell in cells if cell]  # several tabs align columns
    while cells and not cells[-1]:
        cells.pop()
    return Row(number, cells, attributes, '"' in line)


def _without_comment(line: str, number: int) -> str:
    """Cut a comment at the end of a line of cells between blanks."""
    for found in re.finditer(r'"[^"]*"|#', line):
        if found[0] == "#":
            if found.start() and not line[found.start() - 1].isspace():
                raise ContradictionError(
                    f"line {number} has # in the middle of a name; put the name in quotation marks, or a blank before "
                    "a comment"
                )
            return line[: found.start()]
    return line
