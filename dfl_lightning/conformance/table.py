"""The outcomes of all methods, as a table for a terminal or for a page."""

from __future__ import annotations

from collections.abc import Sequence

from rich.markup import escape
from rich.table import Table

from dfl_lightning.conformance.adapters import CaseOutcome, MethodOutcome
from dfl_lightning.utils.errors import one_line

__all__ = ["markdown", "rich_table"]

HEADS = ("method", "result", "cases", "where, and what was not given")


def rich_table(outcomes: Sequence[MethodOutcome]) -> Table:
    """Build the table for a terminal, with one row for each method."""
    table = Table(*HEADS, box=None, pad_edge=False)
    colours = {True: "green", False: "red", None: "dim"}
    for outcome in outcomes:
        name, result, *rest = map(escape, cells(outcome))  # brackets in an error must not be read as markup
        table.add_row(name, f"[{colours[outcome.agrees]}]{result}[/]", *rest)
    return table


def markdown(outcomes: Sequence[MethodOutcome]) -> str:
    """Format the methods that are offered as a Markdown table, followed by the names of the others."""
    rows = [HEADS, ("---",) * len(HEADS), *(cells(outcome) for outcome in outcomes if outcome.offered)]
    table = "\n".join(f"| {' | '.join(map(_in_a_row, row))} |" for row in rows)
    others = ", ".join(outcome.cases.name for outcome in outcomes if not outcome.offered)
    return f"{table}\n\nNot offered: {others}.\n" if others else f"{table}\n"


def _in_a_row(text: str) -> str:
    """Escape a text for a Markdown table, since an error may have several lines, and strokes."""
    return one_line(text).replace("|", r"\|")


def cells(outcome: MethodOutcome) -> tuple[str, str, str, str]:
    """Return the row of a method: its name, its result, the number of cases, and where it differs most."""
    worst = outcome.worst
    if worst is None:
        reasons = {case.refused: None for case in outcome.outcomes}
        return outcome.cases.name, "not offered", "", "; ".join(reasons)
    shares = f"{outcome.agreeing} of {len(outcome.offered)}"
    left_out = len(outcome.outcomes) - len(outcome.offered)
    if left_out:
        shares += f", {left_out} not offered"
    notes = [] if outcome.agrees else [_where(worst)]
    missing = {name: None for case in outcome.offered for name in case.missing}
    if missing:
        notes.append(f"without {', '.join(missing)}")
    return outcome.cases.name, _result(outcome, worst), shares, "; ".join(notes)


def _result(outcome: MethodOutcome, worst: CaseOutcome) -> str:
    if worst.failed:
        return "fails"
    if outcome.agrees:
        return f"agrees, {worst.largest:.0e}" if worst.largest else "agrees"
    return "differs" if worst.largest == float("inf") else f"differs by {worst.largest:.2g}"


def _where(worst: CaseOutcome) -> str:
    if worst.failed:
        return f"{worst.case}: {worst.failed}"
    name = max(worst.differences, key=lambda output: worst.differences[output])
    return f"{name} of {worst.case}"
