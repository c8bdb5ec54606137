"""A table of results for people, as wide as the terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Sequence

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from dfl_lightning.bench.study.tables.formats import cell_in_words, difference_heads, differences_in_words
from dfl_lightning.bench.study.tables.table import Table

_WHOLE = "\N{NO-BREAK SPACE}"
"""A space at which no line ends, so that a deviation and an interval stay whole; it is printed as a space."""


def print_table(table: Table, console: Console | None = None) -> None:
    """Print a table, the paired differences to the best rows, and the notes; all of it wrapped between words.

    Args:
        table: numbers of a study.
        console: where it is printed; default: standard output.
    """
    console = console or Console(highlight=False)
    console.print(Text(table.title, style="bold"))
    heads = ["", *table.columns, *table.further]
    cells = [
        [
            row,
            *(cell_in_words(table, row, column) for column in table.columns),
            *(of[row] for of in table.further.values()),
        ]
        for row in table.rows
    ]
    left = {0, *range(1 + len(table.columns), len(heads))}
    best = {
        (at, 1 + number)
        for at, row in enumerate(table.rows)
        for number, column in enumerate(table.columns)
        if table.is_best(row, column)
    }
    console.print(Padding(_fitted(heads, cells, left, console.width, best), (1, 0)))
    rows = differences_in_words(table)
    if rows:
        console.print("Paired differences to the best:")
        console.print(Padding(_fitted(difference_heads(), rows, {0, 1}, console.width), (1, 0)))
    notes = RichTable.grid(padding=(0, 1, 0, 0))
    for note in [*table.signs, *table.notes, f"made: {table.made}"]:
        notes.add_row("-", Text(note))
    console.print(notes)


def _fitted(
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    left: Collection[int],
    width: int,
    bold: Collection[tuple[int, int]] = (),
) -> RichTable:
    """Make a table whose lines end between words.

    Args:
        heads: heads of the columns.
        rows: a text for each column.
        left: columns that are aligned at the left; the others are at the right.
        width: letters of a line of the terminal.
        bold: row and column of the cells in bold type.
    """
    lines = [[_kept(cell) for cell in row] for row in (heads, *rows)]
    gap, widths = _widths(lines, width)
    if sum(widths) + gap * (len(widths) - 1) > width:  # then lines may end at any space
        lines = [list(row) for row in (heads, *rows)]
        gap, widths = _widths(lines, width)
    wrapped = [
        [
            "\n".join(textwrap.wrap(cell, max(1, room), break_long_words=False))
            for cell, room in zip(row, widths, strict=True)
        ]
        for row in lines
    ]
    shown = RichTable(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style="dim")
    for at, (head, room) in enumerate(zip(wrapped[0], widths, strict=True)):
        text = escape(head.replace(_WHOLE, " "))
        shown.add_column(text, justify="left" if at in left else "right", width=room, no_wrap=True)
    for at, row in enumerate(wrapped[1:]):
        texts = enumerate(cell.replace(_WHOLE, " ") for cell in row)
        shown.add_row(*(Text(text, style="bold" if (at, column) in bold else "") for column, text in texts))
    return shown


def _kept(text: str) -> str:
    """Join a deviation to its signs, both ends of an interval, and a setting to its value."""
    for words in (" *", " ≈"):
        text = text.removesuffix(words) + words.replace(" ", _WHOLE) if text.endswith(words) else text
    parts = text.split(" ")
    is_interval = len(parts) == 3 and parts[1] == "to"
    if is_interval:
        return text.replace(" ", _WHOLE)
    return text.replace("± ", f"±{_WHOLE}").replace("− ", f"−{_WHOLE}").replace(" = ", f"{_WHOLE}={_WHOLE}")


def _widths(lines: Sequence[Sequence[str]], width: int) -> tuple[int, list[int]]:
    """Choose the spaces between columns, and the widths of columns: the widest give way until all fit.

    A column stays as wide as its longest word. If the columns do not fit even so, they are as narrow as that.
    """
    columns = list(zip(*lines, strict=True))
    least = [max(len(word) for cell in column for word in (cell.split(" "))) for column in columns]
    for gap in (2, 1):
        widths = [max(map(len, column)) for column in columns]
        room = width - gap * (len(columns) - 1)
        while sum(widths) > room and widths != least:
            at = max((at for at in range(len(widths)) if widths[at] > least[at]), key=lambda at: widths[at])
            widths[at] -= 1
        if sum(widths) <= room:
            return gap, widths
    return 1, least
