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
from dfl_lightning.bench.study.tables.measure import ACCURACIES, SCORES
from dfl_lightning.runs.reading import Run
from dfl_lightning.utils.errors import UserError


class StudyCell:
    """One cell of a study, as its folder says when it is first asked.

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
    def _found(self) -> CellState:
        return state_of(Cell(self.row, self.column, self.seed, {}, self.folder, code=self._code))

    @property
    def state(self) -> str:
        """One of done, running, missing data, failed, other code, stopped, waiting."""
        return self._found.word

    @property
    def rounds(self) -> int:
        """Rounds that are done."""
        return self._found.rounds

    @property
    def seconds(self) -> float | None:
        """Seconds of all its rounds; None where it is not done."""
        return self._found.seconds

    @property
    def score_name(self) -> str:
        """What its task calls its score, as in the column `test_<name>`; empty where it is not done."""
        return self._found.score.name if self._found.is_done else ""

    @property
    def summary(self) -> dict[str, Any]:
        """Its run's summary.json, empty where there is none yet."""
        return self._found.summary

    def score(self, name: str = "last") -> float | None:
        """The score of its task in one of the ways of `score` in study files, not in percent; None where it has none.

        Args:
            name: `last`, `best_round`, `best_per_client`, `best_val`, `global_last` or `global_mean_over_rounds`.
        """
        value = self._found.score.numbers(self.summary).get(name) if self._found.is_done else None
        return None if value is None else float(value)

    def accuracy(self, name: str = "acc_last") -> float | None:
        """One of its accuracies, 0 to 1; None where it is not done, or its task is not about classes."""
        return self.score(name.removeprefix("acc_")) if self._found.score.name == "acc" else None

    @cached_property
    def run(self) -> Run:
        """Its run, as `read_run` reads it.

        Raises:
            UserError: it has none that can be read yet.
        """
        if self._found.run is None:
            raise UserError(f"{self.folder}: no run in there yet, the cell is {self.state}")
        return Run(self._found.run)

    def __repr__(self) -> str:
        """Which one, and how far it is."""
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
        """Where it is and how far it got."""
        done = sum(cell.state == "done" for cell in self.cells)
        return f"StudyResults({str(self.path)!r}, {done} of {len(self.cells)} cells done)"

    @cached_property
    def table(self) -> dict[str, np.ndarray]:
        """A line a cell, by column: `row`, `column`, `seed`, `scale`, `state`, `rounds`, `seconds`, scores, accuracies.

        The task's score, whose name is in `score`, has its columns `last`, `best_round` and so on, not in percent;
        where it is an accuracy, `acc_last` and so on are the same. NaN where a cell has none; float64.
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
            **{name: _numbers([cell.accuracy(name) for cell in cells]) for name in ACCURACIES if name not in SCORES},
        }

    def frame(self) -> Any:
        """The table as a pandas frame.

        Raises:
            UserError: pandas is not installed.
        """
        try:
            import pandas
        except ImportError as error:
            raise UserError("frame() needs pandas: pip install pandas; table needs nothing") from error
        return pandas.DataFrame(self.table)

    def cell(self, row: str, column: str, seed: int, scale: float = 1.0) -> StudyCell:
        """One of the cells.

        Args:
            row: its method's name.
            column: its task's name.
            seed: of the run.
            scale: of the rounds.

        Raises:
            UserError: there is no such cell.
        """
        for cell in self.cells:
            if (cell.row, cell.column, cell.seed, cell.scale) == (row, column, seed, scale):
                return cell
        scaled = "" if scale == 1 else f", scale {scale:g}"
        raise UserError(f"{self.path}: there is no cell {row}, {column}, seed {seed}{scaled}; `table` lists them")


def read_study(folder: str | os.PathLike[str]) -> StudyResults:
    """Read a study's cells: where each is in the table, how far it is, its scores, and its run.

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
