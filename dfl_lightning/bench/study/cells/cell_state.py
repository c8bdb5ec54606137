"""The state of a cell, read only from the files that its runs have left in its folder."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from dfl_lightning.bench.study.cells.other_code import changes_of_code, is_accepted
from dfl_lightning.bench.study.cells.resolve import disagreement
from dfl_lightning.bench.study.plan import CONFIG, Cell
from dfl_lightning.bench.study.tables.measures.measure import Measure
from dfl_lightning.checkpoints.names import FOLDER, LAST
from dfl_lightning.utils.errors import one_line
from dfl_lightning.utils.score import Score
from dfl_lightning.utils.storage.files import write_atomically
from dfl_lightning.utils.storage.locks import is_locked
from dfl_lightning.utils.storage.yaml_files import read_config

FAILURE = "failure.json"
"""The file with the reason why a cell has failed, or which data it lacks; removed when the cell is started again."""


@dataclass(frozen=True)
class CellState:
    """The state of a cell, as its folder says.

    Attributes:
        cell: the cell.
        run: the folder of its newest run that is finished or can be resumed; None: there is none.
        summary: content of the run's summary.json; empty if there is none yet.
        why: a sentence, if the cell has failed or its data are missing.
        lacks_data: whether its data are missing.
        other_code: how the code of its run differs from the present one, unless the difference was accepted.
        accepted_code: how the code of its run differs from the present one, if the difference was accepted.
    """

    cell: Cell
    run: Path | None
    summary: dict[str, Any]
    why: str = ""
    lacks_data: bool = False
    other_code: str = ""
    accepted_code: str = ""

    @property
    def is_done(self) -> bool:
        """True if the cell has a finished run, of the present code or of code that was accepted."""
        return self.summary.get("status") == "finished" and not self.other_code

    @cached_property
    def is_running(self) -> bool:
        """True if a process works at the cell."""
        return not self.is_done and is_locked(self.cell.folder)

    @property
    def word(self) -> str:
        """The state in a word: done, running, missing data, failed, other code, stopped or waiting."""
        if self.is_done:
            return "done"
        if self.is_running:
            return "running"
        if self.why:
            return "missing data" if self.lacks_data else "failed"
        if self.other_code:
            return "other code"
        return "stopped" if self.run is not None else "waiting"

    @cached_property
    def rounds(self) -> int:
        """The number of rounds that are done, those since the last checkpoint included."""
        if self.is_done:
            return int(self.summary.get("rounds", 0))
        return 0 if self.run is None or (self.other_code and not self.is_running) else rows_of(self.run)

    @property
    def seconds(self) -> float | None:
        """The seconds of all rounds; None if the cell is not done."""
        seconds = self.summary.get("seconds", {}).get("rounds") if self.is_done else None
        return None if seconds is None else float(seconds)

    def number(self, measure: Measure) -> float | None:
        """Return the number that a table compares, in its unit; None if the cell is not done or has none."""
        return measure.of(self.summary, self.run) if self.is_done else None

    @property
    def score(self) -> Score:
        """The kind of score of the run's task."""
        return Score.read(self.summary)

    def is_broken(self, measure: Measure) -> bool:
        """Return True if the number is NaN or infinite, for example because a client's loss was not finite."""
        return self.is_done and measure.is_not_finite(self.summary, self.run)


def state_of(cell: Cell) -> CellState:
    """Read the state of a cell from its folder."""
    runs = runs_of(cell)
    for run in runs:
        summary = read_json(run / "summary.json")
        if summary.get("status") == "finished":
            return _with_code(CellState(cell, run, summary))
    unfinished = next((run for run in runs if (run / FOLDER / LAST).exists()), None)
    failure = read_json(cell.folder / FAILURE)
    summary = {} if unfinished is None else read_json(unfinished / "summary.json")
    state = CellState(cell, unfinished, summary, one_line(str(failure.get("why", ""))), bool(failure.get("lacks_data")))
    return _with_code(state)


def _with_code(state: CellState) -> CellState:
    """Add to a state how the code of the run differs from the present code."""
    if state.run is None:
        return state
    changes = changes_of_code(state.cell, state.run, state.summary)
    if changes and is_accepted(state.cell, state.run):
        return replace(state, accepted_code=changes)
    return replace(state, other_code=changes)


def contradictions(cells: list[Cell]) -> Iterator[str]:
    """Yield a sentence for each cell whose folder was made with other defaults of the library's classes.

    Cells of other code are skipped, since they will be trained again.
    """
    for cell in cells:
        file = cell.folder / CONFIG
        difference = disagreement(read_config(file), cell.config) if file.is_file() else ""
        if difference and not state_of(cell).other_code:
            yield f"{cell.folder} was made with another default of dfl_lightning: {difference}; remove the folder"


def runs_of(cell: Cell) -> list[Path]:
    """List the run folders of a cell, the newest first."""
    folder = cell.folder / "run"
    runs = [path for path in folder.iterdir() if path.is_dir()] if folder.is_dir() else []
    return sorted(runs, key=lambda path: (path.stat().st_mtime_ns, path.name), reverse=True)


def rows_of(run: Path) -> int:
    """Count the complete rows of a run's metrics.csv."""
    try:
        return max(0, (run / "metrics.csv").read_bytes().count(b"\n") - 1)
    except OSError:
        return 0


def write_failure(cell: Cell, why: str, lacks_data: bool = False) -> None:
    """Write the reason why a cell cannot be run into its folder.

    Args:
        cell: cell that has failed.
        why: one sentence.
        lacks_data: whether the reason is missing data.
    """
    text = json.dumps({"why": why, "lacks_data": lacks_data}) + "\n"
    write_atomically(cell.folder / FAILURE, lambda file: file.write(text.encode()))


def read_json(file: Path) -> dict[str, Any]:
    """Read a JSON object from a file; return an empty one if the file is missing or damaged."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
