"""What a cell takes on the disk, and what of it a finished one gives back."""

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
        models: its last checkpoint.
        tables: all other files of its run folder.
    """

    models: int
    tables: int


def space_of(run: Path, done: int, rounds: int) -> Space | None:
    """What a run will take once it is finished, from what it takes now; None where it has no checkpoint.

    The tables and arrays grow with the rounds, the split does not.

    Args:
        run: its folder.
        done: rounds in its metrics.csv, 1 or more.
        rounds: that it is to have.
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
    """Those of the last checkpoint, while metrics.csv may have later ones already; 0 where no links are recorded."""
    rounds = read_npz(run / "graphs.npz").get("round", np.empty(0))
    return int(rounds.max()) + 1 if rounds.size else 0


def give_back(state: CellState, keep_models: bool = True) -> None:
    """Remove the checkpoints that a finished cell no longer needs; of another one nothing is removed.

    Its settings are in its folder's name, so that it never resumes: the checkpoint before the last serves nothing.

    Args:
        state: of the cell.
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
    """Free bytes of the disk on which a folder is, or will be."""
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.is_dir())
    return shutil.disk_usage(there).free


def bytes_in(path: Path) -> int:
    """Bytes of a file, or of all files below a folder; 0 where there is neither."""
    return sum(file.stat().st_size for file in _files(path))


def _files(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
    elif path.is_dir():
        yield from (file for file in path.rglob("*") if file.is_file())
