"""The check for validation data, which choose the round whose score a study compares."""

from __future__ import annotations

from collections.abc import Sequence

from dfl_lightning.bench.study.cells.cell_state import CellState
from dfl_lightning.bench.study.file.validation_settings import said_by
from dfl_lightning.runs.tables import read_npz


def are_validated(states: Sequence[CellState]) -> bool:
    """Return True if all cells have validation data; those whose settings do not decide it count once they are done."""
    answers = [_is_validated(state) for state in states]
    return any(answers) and not any(answer is False for answer in answers)


def _is_validated(state: CellState) -> bool | None:
    said = said_by(state.cell.config)
    if said is not None or state.run is None or not state.is_done:
        return said
    offsets = read_npz(state.run / "split.npz").get("val_offsets")
    return offsets is not None and len(offsets) > 0 and bool(offsets[-1] > 0)
