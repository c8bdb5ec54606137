"""The runs of a report: folders as they were named, with all runs in them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from dfl_lightning.utils.errors import UserError

METRICS = "metrics.csv"


def collect_runs(named: Sequence[tuple[str, str]]) -> list[tuple[str, Path]]:
    """Find the runs in folders of any kind: runs, studies, cells of a study, and folders of these.

    A run that is named itself and also lies in another folder of the list is taken once, with the name it was given.

    Args:
        named: for each folder the name of the method of its runs, which may be empty, and the folder.

    Returns:
        The name and the run folder of each run: in the order of the list, and by path within a folder.

    Raises:
        UserError: a folder does not exist, cannot be read, or holds no run.
    """
    runs: list[tuple[str, Path]] = []
    seen = {Path(folder).resolve() for _, folder in named if is_run(folder)}
    for name, folder in named:
        if is_run(folder):
            runs.append((name, Path(folder)))
            continue
        for run in _runs_below(Path(folder)):
            resolved = run.resolve()
            if resolved not in seen:
                seen.add(resolved)
                runs.append((name, run))
    return runs


def is_run(folder: str | os.PathLike[str]) -> bool:
    """Return True if a folder is that of a run."""
    return (Path(folder) / METRICS).is_file()


def _runs_below(folder: Path) -> list[Path]:
    """List the run folders below a folder, sorted; raise if there are none."""
    if not folder.exists():
        raise UserError(f"{folder}: the folder does not exist; give a run folder or a folder of runs, as in runs/afind")
    if not folder.is_dir():
        raise UserError(f"{folder}: this is a file; give the folder of a run, or a folder of runs")
    found = []
    for path, folders, files in os.walk(folder, onerror=_refuse):
        if METRICS in files:
            found.append(Path(path))
            folders.clear()  # nothing below a run is another run
        else:
            folders[:] = [name for name in folders if not name.startswith(".")]
    if not found:
        raise UserError(
            f"{folder}: the folder holds no run, which has a {METRICS}; give a run folder or a folder of runs"
        )
    return sorted(found)


def _refuse(error: OSError) -> NoReturn:
    raise UserError(f"{error.filename}: the folder cannot be read ({error.strerror}); name the runs themselves")
