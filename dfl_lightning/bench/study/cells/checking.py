"""The checks before anything runs: `dfl-fit` accepts every cell, and its data are there."""

from __future__ import annotations

from dfl_lightning.bench.study.cells.cell_process import Taken, take
from dfl_lightning.bench.study.cells.cell_state import CellState, state_of, write_failure
from dfl_lightning.bench.study.cells.resolve import common_to_runs, outline_of
from dfl_lightning.bench.study.plan import Cell, Plan
from dfl_lightning.utils.errors import MissingData, UserError


def check(plan: Plan) -> list[Cell]:
    """Return the cells to run; record missing data as the state of the cells that lack them.

    Raises:
        UserError: dfl-fit refuses a row or a column, which the sentence names.
    """
    lacking = lacking_data(plan)
    todo = [state for cell in plan.distinct() if not (state := state_of(cell)).is_done]
    for state in todo:
        if state.cell.data in lacking:
            _record_missing_data(state, lacking[state.cell.data])
    return [state.cell for state in todo if state.cell.data not in lacking]


def lacking_data(plan: Plan) -> dict[str, str]:
    """Find missing data; return a sentence about them by `Cell.data`.

    Each row and each column is set up once without training, since a mistake in it would stop all of its cells. Cells
    that have begun have passed this check already. Data that several cells have in common are read once, and networks
    that train alike are tried once.

    Raises:
        UserError: dfl-fit refuses a row or a column, which the sentence names; or its runs do not log the number that
            the table compares, or one that `published_numbers` has for it.
    """
    lacking: dict[str, str] = {}
    rows: set[str] = set()
    columns: set[str] = set()
    with common_to_runs() as common:
        for cell in plan.distinct():
            state = state_of(cell)
            if state.is_done or cell.data in lacking or (cell.row in rows and cell.column in columns):
                continue
            if state.run is None or state.other_code:
                try:
                    logged = outline_of(cell.config, common).columns
                    for measure in plan.study.measures_of(cell.row, cell.column):
                        measure.check(logged)
                except MissingData as error:
                    lacking[cell.data] = str(error)
                    continue
                except UserError as error:
                    raise UserError(f"{plan.study.path}: {cell.row}, {cell.column}: {error}") from error
            rows.add(cell.row)
            columns.add(cell.column)
    return lacking


def _record_missing_data(state: CellState, why: str) -> None:
    try:
        lock = take(state.cell.folder)
    except Taken:  # another process works at the cell, so it has its data
        return
    write_failure(state.cell, why, lacks_data=True)
    lock.release()
