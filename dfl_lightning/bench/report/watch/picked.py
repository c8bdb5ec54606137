"""The page of runs that a reader has picked: the ordinary page, made for these runs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from dfl_lightning.bench.report.methods import find_methods
from dfl_lightning.bench.report.watch.rows import RUNNING, status_of
from dfl_lightning.bench.report.writing import check_report, page_text
from dfl_lightning.runs.reading import Run

_LEAST_GAP, _SHARE = 3.0, 0.05
"""Least seconds between two pages of a run that trains, and the largest share of the time that they take."""


class PageMaker:
    """Maker of pages about picked runs; keeps the last page until a run in it changes."""

    def __init__(self) -> None:
        check_report()
        self._last: tuple[object, bytes] = (None, b"")
        self._took = 0.0

    def make(self, folders: Sequence[str]) -> bytes:
        """Return the page of some runs, in UTF-8.

        Args:
            folders: the run folders.

        Raises:
            UserError: a run has gone, or its files are damaged.
        """
        key = tuple((folder, *_stamps(Path(folder))) for folder in folders)
        if key != self._last[0]:
            began = time.perf_counter()
            runs = [Run(folder) for folder in folders]
            trains = len(runs) == 1 and not runs[0].summary and status_of(folders[0]) == RUNNING
            gap = max(_LEAST_GAP, self._took / _SHARE) if trains else None
            text = page_text(find_methods(runs), following=gap)
            self._last = (key, text.encode("utf-8", "replace"))  # a folder's name may not be valid UTF-8
            self._took = time.perf_counter() - began
        return self._last[1]


def _stamps(folder: Path) -> list[tuple[str, int, int]]:
    """Return name, time of change and size of each file in a folder; empty if the folder has gone."""
    if not folder.is_dir():
        return []
    found = []
    for file in sorted(folder.iterdir()):
        if file.is_file():
            about = file.stat()
            found.append((file.name, about.st_mtime_ns, about.st_size))
    return found
