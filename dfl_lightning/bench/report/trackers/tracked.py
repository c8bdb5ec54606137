"""The content of a run as trackers of experiments have it: a name, a group, settings, and numbers by round."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dfl_lightning.bench.report.methods import find_methods, seed_of
from dfl_lightning.runs.reading import Run
from dfl_lightning.utils.errors import UserError


@dataclass(frozen=True)
class Tracked:
    """A run under the name of its method.

    Attributes:
        run: the run.
        method: name of its method.
        folder: path below the folder of the tracker, unique among the runs.
        name: name of the run.
    """

    run: Run
    method: str
    folder: Path
    name: str

    def rounds(self) -> Iterator[tuple[int, float, dict[str, float]]]:
        """Yield each round, counted from 1, with its time in seconds since 1970, and the numbers of all columns.

        Numbers that a round lacks are left out.
        """
        columns = self.run.metrics
        seconds = np.nan_to_num(columns.get("seconds", np.zeros(len(columns["round"]))))
        ended = (self.run.path / "metrics.csv").stat().st_mtime
        times = ended - seconds.sum() + seconds.cumsum()
        for at, number in enumerate(columns["round"]):
            values = {name: float(column[at]) for name, column in columns.items() if name != "round"}
            yield int(number) + 1, float(times[at]), {k: value for k, value in values.items() if not math.isnan(value)}

    def clients(self) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
        """Yield each evaluation's round, counted from 1, and the numbers of the clients that have one, by array."""
        arrays = {name: array for name, array in self.run.clients.items() if name != "rounds" and array.ndim == 2}
        for at, number in enumerate(self.run.clients.get("rounds", ())):
            found = {name: array[at][np.isfinite(array[at])] for name, array in arrays.items()}
            yield int(number) + 1, {name: values for name, values in found.items() if len(values)}


def tracked_runs(named: Sequence[tuple[str, Path]]) -> list[Tracked]:
    """Read runs and name them after their methods.

    Args:
        named: for each run the name of its method, which may be empty, and the run folder.
    """
    found: list[Tracked] = []
    taken: set[Path] = set()
    for method in find_methods([Run(folder) for _, folder in named], [name for name, _ in named]):
        for run in method.runs:
            stem = Path(_safe(method.name), f"seed-{_safe(str(seed_of(run)))}")
            folder = next(path for path in _numbered(stem) if path not in taken)
            taken.add(folder)
            found.append(Tracked(run, method.name, folder, f"{method.name}, seed {seed_of(run)}"))
    return found


def empty_folder(option: str, folder: str) -> Path:
    """Return a folder to write into, which must be empty or new: a tracker adds to the files of an earlier copy.

    Args:
        option: name of the option that names the folder, for the message.
        folder: the folder.

    Raises:
        UserError: it is a file, or has files already.
    """
    path = Path(folder)
    if path.exists() and not path.is_dir():
        raise UserError(f"--{option} {folder}: this is a file; give a folder")
    if path.is_dir() and any(path.iterdir()):
        raise UserError(f"--{option} {folder}: the folder has files already; give a new one, or remove it")
    return path


def settings_of_tracker(run: Run) -> dict[str, Any]:
    """Return the settings of a run, for a tracker's table of settings, by dotted names.

    Args:
        run: the run; the result is empty without a config.
    """
    from dfl_lightning.bench.report.watch.settings import flat

    return flat(run.config)


def _safe(name: str) -> str:
    """Return a name that a file can have."""
    return re.sub(r"[^\w.+=-]+", "-", name).strip("-.")[:100] or "run"


def _numbered(path: Path) -> Iterator[Path]:
    """Yield a path, and then with numbers after it."""
    yield path
    number = 2
    while True:
        yield path.with_name(f"{path.name}-{number}")
        number += 1
