"""The conditions, apart from their methods, in which the rows of a column differ."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dfl_lightning.bench.report.settings.conditions import in_words, unequal_conditions
from dfl_lightning.bench.study.cells.cell_state import CellState
from dfl_lightning.bench.study.plan import Plan
from dfl_lightning.runs.tables import read_npz

SAMPLES = "training samples"
"""A condition that is read from the split files of runs, since configs do not contain it."""


def unequal_rows(
    plan: Plan, states: Sequence[CellState] = ()
) -> dict[str, tuple[list[str], list[tuple[str, list[str]]]]]:
    """Find the conditions in which the rows of each column differ, except options that `tune` chooses.

    Args:
        plan: cells of the study.
        states: states of the cells; runs of finished ones give the numbers of training samples.

    Returns:
        By column, the rows that have cells, and each condition with its value for each of these rows.
    """
    tune = plan.study.tune
    ranges = [] if tune is None else [tune.space, *tune.rows.values()]
    tuned = {option.replace(".init_args", "") for options in ranges for option in options}
    found = {}
    for column in plan.study.columns:
        first = {row: cells[0] for row in plan.study.rows if (cells := plan.of(row, column))}
        configs = [cell.config for cell in first.values()]
        samples = _training_samples([state for state in states if state.cell.column == column])
        unlike = len({samples[row] for row in first if row in samples}) > 1
        facts = [{SAMPLES: samples.get(row, "not known")} for row in first] if unlike else []
        found[column] = (list(first), unequal_conditions(configs, facts, without=tuned))
    return found


def _training_samples(states: Sequence[CellState]) -> dict[str, int]:
    """Return the number of training samples of all clients, by row, for the seed that most rows have finished."""
    by_seed: dict[int, dict[str, int]] = {}
    for state in states:
        if state.is_done and state.run is not None:
            offsets = read_npz(state.run / "split.npz").get("train_offsets")
            if offsets is not None and len(offsets):
                by_seed.setdefault(state.cell.seed, {})[state.cell.row] = int(offsets[-1])
    return max(by_seed.values(), key=len, default={})


def sentences(plan: Plan, states: Sequence[CellState] = ()) -> Iterator[str]:
    """Yield sentences on the conditions in which rows differ; columns with the same conditions share one."""
    said: dict[str, list[str]] = {}
    for column, (rows, unequal) in unequal_rows(plan, states).items():
        if unequal:
            said.setdefault(in_words(rows, unequal), []).append(column)
    for words, columns in said.items():
        where = "" if len(columns) == len(plan.study.columns) else f" in {', '.join(columns)}"
        yield f"rows differ{where} in more than their method: {words}"


def by_place(plan: Plan, states: Sequence[CellState] = ()) -> dict[tuple[str, str], str]:
    """Describe, by row and column, the values of the conditions in which the rows of the column differ."""
    return {
        (row, column): "; ".join(f"{name}: {values[at]}" for name, values in unequal)
        for column, (rows, unequal) in unequal_rows(plan, states).items()
        for at, row in enumerate(rows)
    }
