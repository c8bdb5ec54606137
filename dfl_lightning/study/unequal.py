"""The conditions outside of their methods in which the rows of a study differ, column by column."""

from __future__ import annotations

from collections.abc import Iterator

from dfl_lightning.report.conditions import in_words, unequal_conditions
from dfl_lightning.study.plan import Plan


def unequal_rows(plan: Plan) -> dict[str, tuple[list[str], list[tuple[str, list[str]]]]]:
    """Find in which conditions the rows of each column differ; options that `tune` chooses are said elsewhere.

    Args:
        plan: the cells.

    Returns:
        For each column the rows that have cells, and the conditions with the value of each of these rows.
    """
    tune = plan.study.tune
    ranges = [] if tune is None else [tune.space, *tune.rows.values()]
    tuned = {option.replace(".init_args", "") for options in ranges for option in options}
    found = {}
    for column in plan.study.columns:
        first = {row: cells[0] for row in plan.study.rows if (cells := plan.of(row, column))}
        configs = [cell.config for cell in first.values()]
        found[column] = (list(first), unequal_conditions(configs, without=tuned))
    return found


def sentences(plan: Plan) -> Iterator[str]:
    """Say in which conditions rows differ, once for the columns in which it is the same.

    Args:
        plan: the cells.
    """
    said: dict[str, list[str]] = {}
    for column, (rows, unequal) in unequal_rows(plan).items():
        if unequal:
            said.setdefault(in_words(rows, unequal), []).append(column)
    for words, columns in said.items():
        where = "" if len(columns) == len(plan.study.columns) else f" in {', '.join(columns)}"
        yield f"rows differ{where} in more than their method: {words}"


def by_place(plan: Plan) -> dict[tuple[str, str], str]:
    """Give each place of the table its own values of the conditions in which the rows of its column differ.

    Args:
        plan: the cells.
    """
    return {
        (row, column): "; ".join(f"{name}: {values[at]}" for name, values in unequal)
        for column, (rows, unequal) in unequal_rows(plan).items()
        for at, row in enumerate(rows)
    }
