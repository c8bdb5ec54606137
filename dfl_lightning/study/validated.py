"""Whether clients have validation data, which then choose the round whose score a study compares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dfl_lightning.report.tables import read_npz

if TYPE_CHECKING:
    from dfl_lightning.study.cell_state import CellState


def said_by(config: Mapping[str, Any]) -> bool | None:
    """Say whether a run of these settings has validation data.

    Args:
        config: resolved.

    Returns:
        None where settings do not decide it: a class of data without the option `val_fraction`, or a split file.

    Examples:
        >>> said_by({"data": {"init_args": {"val_fraction": 0.2}}}), said_by({"data": {"class_path": "mine.Data"}})
        (True, None)
    """
    data = config.get("data")
    arguments = (data.get("init_args") or {}) if isinstance(data, Mapping) else {}
    if "val_fraction" not in arguments or arguments.get("split"):
        return None
    return bool(arguments["val_fraction"])


def are_validated(states: Sequence[CellState]) -> bool:
    """Say whether all cells have validation data; those whose settings do not decide it count once they are done.

    Args:
        states: of a study's cells.
    """
    found = [_is_validated(state) for state in states]
    return any(found) and not any(answer is False for answer in found)


def _is_validated(state: CellState) -> bool | None:
    said = said_by(state.cell.config)
    if said is not None or state.run is None or not state.is_done:
        return said
    offsets = read_npz(state.run / "split.npz").get("val_offsets")
    return offsets is not None and len(offsets) > 0 and bool(offsets[-1] > 0)
