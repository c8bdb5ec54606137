"""The disk space of a cell, and the files that a finished cell no longer needs."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dfl_lightning.bench.study.cells.cell_state import CellState
from dfl_lightning.checkpoints.names import FOLDER, LAST, PREVIOUS
from dfl_lightning.runs.tables import read_npz


@dataclass(frozen=True)
class Space:
    """Bytes of a finished cell.

    Attributes:
        models: size of its last checkpoint.
        tables: size of all other files in its run folder.
    """

    models: int
    tables: int


def space_of(run: Path, done: int, rounds: int) -> Space | None:
    """Estimate the disk space of a run once it is finished, from its present files; None if it has no checkpoint.

    The tables and arrays grow with the rounds, the split does not.

    Args:
        run: folder of the run.
        done: rounds in its metrics.csv, 1 or more.
        rounds: rounds of the finished run.
    """
    last = run / FOLDER / LAST
    if not last.exists() or done < 1:
        return None
    saved = _rounds_in_arrays(run) or done
    arrays = sum(bytes_in(file) for file in run.glob("*.npz") if file.name != "split.npz")
    growth = bytes_in(run / "metrics.csv") * (rounds - done) / done + arrays * (rounds - saved) / saved
    now = bytes_in(run) - bytes_in(run / FOLDER)
    return Space(bytes_in(last), now + round(growth))


def _rounds_in_arrays(run: Path) -> int:
    """Return the number of rounds in the arrays of a run; 0 if no links are recorded.

    These are the rounds up to the last checkpoint, while metrics.csv may have later ones already.
    """
    rounds = read_npz(run / "graphs.npz").get("round", np.empty(0))
    return int(rounds.max()) + 1 if rounds.size else 0


def give_back(state: CellState, keep_models: bool = True) -> None:
    """Delete the checkpoints that a finished cell no longer needs; do nothing if the cell is not done.

    A finished cell is never resumed, since other settings would give it another folder. So the checkpoint before the
    last is of no use.

    Args:
        state: state of the cell.
        keep_models: whether the last checkpoint stays, for `dfl-test` and `dfl-export`.
    """
    if not state.is_done or state.run is None:
        return
    folder = state.run / FOLDER
    unneeded = folder / PREVIOUS if keep_models else folder
    if unneeded.is_dir():
        shutil.rmtree(unneeded)
    else:
        unneeded.unlink(missing_ok=True)


def free_in(folder: Path) -> int:
    """Return the free bytes of the disk on which a folder is, or will be made."""
    existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.is_dir())
    return shutil.disk_usage(existing).free


def bytes_in(path: Path) -> int:
    """Count the bytes of a file, or of all files below a folder; 0 if the path does not exist."""
    return sum(file.stat().st_size for file in _files(path))


def _files(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
    elif path.is_dir():
        yield from (file for file in path.rglob("*") if file.is_file())
