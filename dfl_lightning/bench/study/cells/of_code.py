"""What is said of cells whose own code has changed, below a table and by `dfl-study status`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dfl_lightning.bench.study.cells.cell_state import CellState
from dfl_lightning.bench.study.plan import Plan
from dfl_lightning.utils.words import enumerated


def about_code(plan: Plan, states: Iterable[CellState]) -> Iterator[str]:
    """Say which cells are of other code, which of them were accepted, and what cannot be compared.

    Args:
        plan: the cells.
        states: of all cells.
    """
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


def by_reason(found: Iterable[tuple[str, CellState]]) -> dict[str, str]:
    """Name the cells of each reason, once for each folder.

    Args:
        found: reasons and states.
    """
    labels: dict[str, dict[object, str]] = {}
    for reason, state in found:
        labels.setdefault(reason, {}).setdefault(state.cell.folder, state.cell.label)
    return {reason: _first_of(list(of.values())) for reason, of in labels.items()}


def _first_of(labels: list[str]) -> str:
    return labels[0] + (f" and {len(labels) - 1} more" if len(labels) > 1 else "")
