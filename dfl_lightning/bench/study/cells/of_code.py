"""The sentences about cells whose own code has changed, for below a table and for `dfl-study status`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dfl_lightning.bench.study.cells.cell_state import CellState
from dfl_lightning.bench.study.plan import Plan
from dfl_lightning.utils.words import enumerated


def about_code(plan: Plan, states: Iterable[CellState]) -> Iterator[str]:
    """Yield sentences that name the cells of other code, those that were accepted, and code that is not found."""
    states = list(states)
    other = by_reason((s.other_code, s) for s in states if s.other_code)
    for reason, labels in other.items():
        yield (
            f"of other code, and in no mean: {labels}: {reason}; dfl-study run trains again, and "
            "dfl-study run --accept-code keeps the numbers"
        )
    for reason, labels in by_reason((s.accepted_code, s) for s in states if s.accepted_code).items():
        yield f"of other code, and accepted: {labels}: {reason}"
    if plan.lost:
        yield f"not found here, so that a change of it would not be noticed: the source of {enumerated(plan.lost)}"


def by_reason(reasons: Iterable[tuple[str, CellState]]) -> dict[str, str]:
    """Group cells by reason, and name each group; cells with the same folder count once."""
    labels: dict[str, dict[object, str]] = {}
    for reason, state in reasons:
        labels.setdefault(reason, {}).setdefault(state.cell.folder, state.cell.label)
    return {reason: _first_and_number(list(of.values())) for reason, of in labels.items()}


def _first_and_number(labels: list[str]) -> str:
    return labels[0] + (f" and {len(labels) - 1} more" if len(labels) > 1 else "")
