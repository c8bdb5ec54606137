"""The numbers of each round of a study's finished cells as CSV, which `dfl-study rounds` writes."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence

from dfl_lightning.bench.study.cells.cell_state import state_of
from dfl_lightning.bench.study.plan import Plan
from dfl_lightning.bench.study.tables.measures.measure import EVALUATED
from dfl_lightning.runs.tables import read_metrics
from dfl_lightning.utils.errors import UserError, nearest

PLACE = ("row", "column", "seed", "round")


def rounds_as_csv(plan: Plan, numbers: Sequence[str] = ()) -> str:
    """Return a line for each row, column, seed and round that has one of the numbers, as metrics.csv has them.

    Args:
        plan: the cells; those that are not done have no lines.
        numbers: columns of metrics.csv; none: all columns of evaluations that some cell has values for.

    Raises:
        UserError: no cell that is done logs one of the numbers.
    """
    tables = dict(_tables(plan))
    logged = list(dict.fromkeys(name for table in tables.values() for line in table for name in line))
    for name in numbers:
        if name not in logged:
            known = ", ".join(name for name in logged if name != "round")
            raise UserError(
                f"--number: no cell that is done logs '{name}'{nearest(name, logged)}; it is one of {known}"
            )
    evaluated = {
        name for table in tables.values() for line in table for name, text in line.items() if _is_result(name, text)
    }
    chosen = [name for name in dict.fromkeys(numbers) if name != "round"] or [n for n in logged if n in evaluated]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*PLACE, *chosen])
    for place, table in tables.items():
        for line in table:
            texts = [line.get(name, "") for name in chosen]
            if any(texts):
                writer.writerow([*place, line["round"], *texts])
    return out.getvalue()


def _tables(plan: Plan) -> Iterator[tuple[tuple[str, str, int], list[dict[str, str]]]]:
    """Yield the lines of metrics.csv of each finished cell; a cell may have several places in the table."""
    for place, cell in plan.cells.items():
        state = state_of(cell)
        if state.is_done and state.run is not None:
            yield place, read_metrics(state.run / "metrics.csv")


def _is_result(name: str, text: str) -> bool:
    return bool(text) and name.startswith(EVALUATED)
