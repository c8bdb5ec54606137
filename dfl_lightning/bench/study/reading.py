"""A study's folder as plain tables and runs, for notebooks: `dfl_lightning.read_study`."""

from __future__ import annotations

import os
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from dfl_lightning.bench.study.cells.cell_state import CellState, state_of
from dfl_lightning.bench.study.file.cells_file import CellEntry, read_cells
from dfl_lightning.bench.study.plan import Cell
from dfl_lightning.bench.study.tables.measures.measure import SCORES
from dfl_lightning.runs.reading import Run
from dfl_lightning.utils.errors import UserError


class StudyCell:
    """One cell of a study; its folder is read when one of its properties is first used.

    Args:
        study: the study's folder.
        entry: its line of cells.csv.

    Attributes:
        row: its method's name.
        column: its task's name.
        seed: of its run.
        scale: of its rounds, 0 to 1; below 1 its numbers are not those of the study.
        folder: of all its files.
    """

    def __init__(self, study: Path, entry: CellEntry) -> None:
        self.row, self.column, self.seed, self.scale = entry.row, entry.column, entry.seed, entry.scale
        self.folder = study / entry.folder
        self._code = entry.code

    @cached_property
    def _cell_state(self) -> CellState:
        return state_of(Cell(self.row, self.column, self.seed, {}, self.folder, code=self._code))

    @property
    def state(self) -> str:
        """The state: done, running, missing data, failed, other code, stopped or waiting."""
        return self._cell_state.word

    @property
    def rounds(self) -> int:
        """The number of rounds that are done."""
        return self._cell_state.rounds

    @property
    def seconds(self) -> float | None:
        """The seconds of all rounds; None if the cell is not done."""
        return self._cell_state.seconds

    @property
    def score_name(self) -> str:
        """The name of its task's score, as in the column `test_<name>`; empty if the cell is not done."""
        return self._cell_state.score.name if self._cell_state.is_done else ""

    @property
    def summary(self) -> dict[str, Any]:
        """The content of its run's summary.json; empty if there is none yet."""
        return self._cell_state.summary

    def score(self, name: str = "last") -> float | None:
        """Return the test score, not in percent, in one of the ways of `score` in study files; None if there is none.

        Args:
            name: `last`, `best_round`, `best_per_client`, `best_val`, `global_last` or `global_mean_over_rounds`.
        """
        value = self._cell_state.score.numbers(self.summary).get(name) if self._cell_state.is_done else None
        return None if value is None else float(value)

    @cached_property
    def run(self) -> Run:
        """The run, as `read_run` reads it.

        Raises:
            UserError: the cell has no run yet.
        """
        if self._cell_state.run is None:
            raise UserError(f"{self.folder}: the cell has no run yet, its state is: {self.state}")
        return Run(self._cell_state.run)

    def __repr__(self) -> str:
        """Show row, column, seed and state."""
        return f"StudyCell({self.row!r}, {self.column!r}, seed {self.seed}, {self.state})"


class StudyResults:
    """The cells of a study, done or not.

    Args:
        folder: the study's.

    Raises:
        UserError: no study has been run there.

    Attributes:
        path: the folder.
        cells: in the order of rows, columns and seeds; those of smaller scales come after the others.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.path = Path(folder)
        self.cells = [StudyCell(self.path, entry) for entry in read_cells(self.path)]

    def __repr__(self) -> str:
        """Show the folder and how many cells are done."""
        done = sum(cell.state == "done" for cell in self.cells)
        return f"StudyResults({str(self.path)!r}, {done} of {len(self.cells)} cells done)"

    @cached_property
    def table(self) -> dict[str, np.ndarray]:
        """The cells as arrays by column: `row`, `column`, `seed`, `scale`, `state`, `rounds`, `seconds`, and scores.

        The name of a task's score is in `score`; its values are in `last`, `best_round` and so on, not in percent:
        float64, NaN if a cell has none.
        """
        cells = self.cells
        return {
            **{name: np.array([getattr(cell, name) for cell in cells], str) for name in ("row", "column")},
            "seed": np.array([cell.seed for cell in cells], np.int64),
            "scale": np.array([cell.scale for cell in cells], np.float64),
            "state": np.array([cell.state for cell in cells], str),
            "rounds": np.array([cell.rounds for cell in cells], np.int64),
            "seconds": _numbers([cell.seconds for cell in cells]),
            "score": np.array([cell.score_name for cell in cells], str),
            **{name: _numbers([cell.score(name) for cell in cells]) for name in SCORES},
        }

    def frame(self) -> Any:
        """Return the table as a pandas data frame.

        Raises:
            UserError: pandas is not installed.
        """
        try:
            import pandas
        except ImportError as error:
            raise UserError("frame() needs pandas: pip install pandas; table needs nothing") from error
        return pandas.DataFrame(self.table)

    def cell(self, row: str, column: str, seed: int, scale: float = 1.0) -> StudyCell:
        """Return the cell of a row, column and seed.

        Args:
            row: name of its method.
            column: name of its task.
            seed: one of the study's seeds.
            scale: factor of the number of rounds, as in `--scale`.

        Raises:
            UserError: there is no such cell.
        """
        for cell in self.cells:
            if (cell.row, cell.column, cell.seed, cell.scale) == (row, column, seed, scale):
                return cell
        scaled = "" if scale == 1 else f", scale {scale:g}"
        raise UserError(f"{self.path}: there is no cell {row}, {column}, seed {seed}{scaled}; `table` lists them")


def read_study(folder: str | os.PathLike[str]) -> StudyResults:
    """Read the cells of a study: their places in the table, states, scores and runs.

    Raises:
        UserError: no study has been run in the folder.

    Examples:
        >>> read_study("studies/nowhere")
        Traceback (most recent call last):
        ...
        dfl_lightning.utils.errors.UserError: studies/nowhere: no cells.csv in there; give a study's folder...
    """
    return StudyResults(folder)


def _numbers(values: list[float | None]) -> np.ndarray:
    return np.array([np.nan if value is None else value for value in values], np.float64)
