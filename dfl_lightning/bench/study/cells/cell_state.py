"""How far a cell is: read from what its runs have left in its folder, nothing else is kept anywhere."""

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
from dfl_lightning.bench.study.tables.measure import Measure
from dfl_lightning.checkpoints.names import FOLDER, LAST
from dfl_lightning.utils.errors import one_line
from dfl_lightning.utils.score import Score
from dfl_lightning.utils.storage.files import write_atomically
from dfl_lightning.utils.storage.locks import is_locked
from dfl_lightning.utils.storage.yaml_files import read_config

FAILURE = "failure.json"
"""Why a cell has failed, or which data it lacks; gone when it is started again."""


@dataclass(frozen=True)
class CellState:
    """What a cell's folder says.

    Attributes:
        cell: whose.
        run: the folder of its newest run that can be resumed, or that is finished; None: there is none.
        summary: that run's, empty where there is none yet.
        why: a sentence, where it has failed or its data are missing.
        lacks_data: whether the latter.
        other_code: how the code of its run differs from the present one, unless that was accepted.
        accepted_code: the same, where it was accepted.
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
        """Whether it has a finished run of the present code, or of one that was accepted."""
        return self.summary.get("status") == "finished" and not self.other_code

    @cached_property
    def is_running(self) -> bool:
        """Whether a process works at it."""
        return not self.is_done and is_locked(self.cell.folder)

    @property
    def word(self) -> str:
        """One of done, running, missing data, failed, other code, stopped, waiting."""
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
        """Rounds that are done, those since the last checkpoint included."""
        if self.is_done:
            return int(self.summary.get("rounds", 0))
        return 0 if self.run is None or (self.other_code and not self.is_running) else rows_of(self.run)

    @property
    def seconds(self) -> float | None:
        """Seconds of all its rounds, where it is done."""
        seconds = self.summary.get("seconds", {}).get("rounds") if self.is_done else None
        return None if seconds is None else float(seconds)

    def number(self, measure: Measure) -> float | None:
        """What a table compares, in its unit; None where the cell is not done or has none."""
        return measure.of(self.summary, self.run) if self.is_done else None

    @property
    def score(self) -> Score:
        """What its run's task compares models by."""
        return Score.read(self.summary)

    def is_broken(self, measure: Measure) -> bool:
        """Say whether its number is NaN or infinite, as where a client's loss was not finite."""
        return self.is_done and measure.is_not_finite(self.summary, self.run)


def state_of(cell: Cell) -> CellState:
    """Read a cell's folder."""
    runs = runs_of(cell)
    for run in runs:
        summary = read_json(run / "summary.json")
        if summary.get("status") == "finished":
            return _with_code(CellState(cell, run, summary))
    going = next((run for run in runs if (run / FOLDER / LAST).exists()), None)
    failure = read_json(cell.folder / FAILURE)
    summary = {} if going is None else read_json(going / "summary.json")
    state = CellState(cell, going, summary, one_line(str(failure.get("why", ""))), bool(failure.get("lacks_data")))
    return _with_code(state)


def _with_code(state: CellState) -> CellState:
    """Compare the code of a cell's run with the present one."""
    if state.run is None:
        return state
    changes = changes_of_code(state.cell, state.run, state.summary)
    if changes and is_accepted(state.cell, state.run):
        return replace(state, accepted_code=changes)
    return replace(state, other_code=changes)


def contradictions(cells: list[Cell]) -> Iterator[str]:
    """Say in which cells' folders there is a run of other settings, which the defaults of classes were then.

    A cell of other code is none of them, for it will be trained again.

    Args:
        cells: of a study.
    """
    for cell in cells:
        file = cell.folder / CONFIG
        found = disagreement(read_config(file), cell.config) if file.is_file() else ""
        if found and not state_of(cell).other_code:
            yield f"{cell.folder} was made when a default of dfl_lightning was another one: {found}; remove the folder"


def runs_of(cell: Cell) -> list[Path]:
    """The run folders of a cell, the newest first."""
    folder = cell.folder / "run"
    found = [path for path in folder.iterdir() if path.is_dir()] if folder.is_dir() else []
    return sorted(found, key=lambda path: (path.stat().st_mtime_ns, path.name), reverse=True)


def rows_of(run: Path) -> int:
    """Whole rows of a run's metrics.csv."""
    try:
        return max(0, (run / "metrics.csv").read_bytes().count(b"\n") - 1)
    except OSError:
        return 0


def write_failure(cell: Cell, why: str, lacks_data: bool = False) -> None:
    """Keep the reason why a cell cannot be run.

    Args:
        cell: of the study.
        why: one sentence.
        lacks_data: whether the reason is missing data.
    """
    text = json.dumps({"why": why, "lacks_data": lacks_data}) + "\n"
    write_atomically(cell.folder / FAILURE, lambda file: file.write(text.encode()))


def read_json(file: Path) -> dict[str, Any]:
    """A JSON object in a file; empty where there is none that can be read."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
