"""A table of results for people, as wide as the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from dfl_lightning.bench.study.tables.formats import cell_in_words, difference_heads, differences_in_words
from dfl_lightning.bench.study.tables.table import Table


def print_table(table: Table, console: Console | None = None) -> None:
    """Print a table, the paired differences to the best rows, and the notes; all of it wrapped between words.

    Args:
        table: numbers of a study.
        console: where it is printed; default: standard output.
    """
    console = console or Console(highlight=False)
    console.print(Text(table.title, style="bold"))
    shown = RichTable(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    shown.add_column("")
    for column in table.columns:
        shown.add_column(escape(column), justify="right")
    for heading in table.further:
        shown.add_column(escape(heading))
    for row in table.rows:
        cells = [
            Text(cell_in_words(table, row, column), style="bold" if table.is_best(row, column) else "")
            for column in table.columns
        ]
        shown.add_row(Text(row), *cells, *(Text(said[row]) for said in table.further.values()))
    console.print(Padding(shown, (1, 0)))
    rows = differences_in_words(table)
    if rows:
        console.print("Paired differences to the best:")
        paired = RichTable(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
        for at, head in enumerate(difference_heads()):
            paired.add_column(escape(head), justify="left" if at < 2 else "right")
        for words in rows:
            paired.add_row(*map(Text, words))
        console.print(Padding(paired, (1, 0)))
    notes = RichTable.grid(padding=(0, 1, 0, 0))
    for note in [*table.signs, *table.notes, f"made: {table.made}"]:
        notes.add_row("-", Text(note))
    console.print(notes)
