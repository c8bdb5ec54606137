"""The state of all cells as a grid: rows × columns, with a mark for each seed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from dfl_lightning.bench.study.cells.cell_state import CellState
from dfl_lightning.bench.study.plan import Plan

MARKS = {
    "done": "✓",
    "running": "▶",
    "stopped": "‖",
    "failed": "✗",
    "other code": "≠",
    "missing data": "?",
    "waiting": "·",
    "excluded": "-",
}
"""The mark of each state, in the order of the legend."""
NONE, ABSENT = "–", "not in library"
"""The text of a place without cells: the file leaves it out, or the library lacks its method or data."""

_MOST_MARKS = 8
"""Number of seeds up to which each has a mark; otherwise a place shows the number of cells in each state."""
_GAP = "  "


def grid(plan: Plan, states: Mapping[tuple[str, str, int], CellState], width: int) -> Iterator[str]:
    """Yield the lines of the grid, in blocks of columns that fit the width, and a legend of the marks.

    Args:
        plan: cells of the study.
        states: state by row, column and seed.
        width: characters in a line of the terminal.
    """
    rows, columns = list(plan.study.rows), list(plan.study.columns)
    places = {(row, column): _marks(plan, states, row, column) for row in rows for column in columns}
    first = max(map(len, rows))
    widths = {c: max(len(c), *(len(places[row, c]) for row in rows)) for c in columns}
    for block in _blocks(columns, widths, width - first):
        for name, texts in [("", block), *((row, [places[row, column] for column in block]) for row in rows)]:
            cells = (text.ljust(widths[column]) for text, column in zip(texts, block, strict=True))
            yield _GAP.join([name.ljust(first), *cells]).rstrip()
        yield ""
    words = {state.word for state in states.values()} | ({"excluded"} if plan.study.exclude else set())
    legend = [f"{mark} {word}" for word, mark in MARKS.items() if word in words]
    seeds = f"a mark a seed: {', '.join(map(str, plan.seeds))}" if 1 < len(plan.seeds) <= _MOST_MARKS else ""
    yield _GAP.join([*legend, *([f"({seeds})"] if seeds else [])])


def _marks(plan: Plan, states: Mapping[tuple[str, str, int], CellState], row: str, column: str) -> str:
    if (row, column) in plan.missing:
        return ABSENT
    if plan.study.is_left_out(row, column):
        return NONE
    keys = [(row, column, seed) for seed in plan.seeds]
    words = ["excluded" if plan.study.is_excluded(*key) else states[key].word for key in keys]
    if len(words) <= _MOST_MARKS:
        return "".join(MARKS[word] for word in words)
    counts = Counter(words)
    return " ".join(f"{counts[word]}{mark}" for word, mark in MARKS.items() if counts[word])


def _blocks(columns: Sequence[str], widths: Mapping[str, int], room: int) -> Iterator[list[str]]:
    """Divide columns into blocks that fit next to the rows' names, with at least one column in each."""
    block: list[str] = []
    used = 0
    for column in columns:
        needed = len(_GAP) + widths[column]
        if block and used + needed > room:
            yield block
            block, used = [], 0
        block.append(column)
        used += needed
    yield block
