"""A row of the table of runs: what a run's small files say, without its arrays."""

from __future__ import annotations

import json
import os
import socket
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from dfl_lightning.bench.report.watch.settings import SettingsReader, plain
from dfl_lightning.utils.score import Score

_MOST_BYTES = 2 * 10**6
"""Largest size of a summary.json or config.yaml that is read."""

_TAIL = 16_384
"""Bytes at the end of metrics.csv in which the last rounds are looked for."""

_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
"""Flags of reading; without the second one, opening a pipe would wait for its writer."""

_STALE = 600.0
"""Seconds without a change after which a run that another machine has begun no longer counts as running."""


RUNNING, NOT_FINISHED = "running", "not finished"
"""Status of a run without a summary: a process works at it, or none does."""


@dataclass
class RunRow:
    """A run of the table.

    Attributes:
        folder: path of the run folder.
        id: name of the run in addresses.
        cells: numbers and texts by column, without the settings.
        parts: numbers of the parts of its config, see `SettingsReader`.
        summary: content of summary.json; empty without one.
        is_over: True if the run has a summary, so that it is finished, stopped or failed.
        version: number of the change that made the row what it is.
    """

    folder: str
    id: str
    cells: dict[str, Any] = field(default_factory=dict)
    parts: list[int] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    is_over: bool = False
    version: int = 0


def read_row(row: RunRow, name: str, changed: int, settings: SettingsReader) -> None:
    """Read the files of a run into its row.

    A file that cannot be read leaves its cells empty, and the column `note` names it.

    Args:
        row: the row, with its folder.
        name: name of the run in the table.
        changed: time of the last change of its metrics.csv, in nanoseconds.
        settings: the reader of configs.
    """
    notes = []
    try:
        text = _read_text(f"{row.folder}{os.sep}summary.json")
        row.summary = _mapping(json.loads(text)) if text else {}
    except (OSError, ValueError, RecursionError):
        notes.append("summary.json cannot be read")
    try:
        text = _read_text(f"{row.folder}{os.sep}config.yaml")
        row.parts = settings.read(text) if text else []
    except (OSError, ValueError):
        notes.append("config.yaml cannot be read")
    row.is_over = bool(row.summary.get("status"))
    score, progress = Score.read(row.summary), _Progress()
    if not row.is_over:
        try:
            progress = _read_progress(f"{row.folder}{os.sep}metrics.csv")
            score = Score.of_columns(progress.columns)
        except (OSError, ValueError):
            notes.append("metrics.csv cannot be read")
    unit = 100.0 if score.percent else 1.0
    block = _mapping(row.summary.get(score.block))
    seed = _mapping(row.summary.get("seeds")).get("run")
    if seed is None:
        seed = next((s["seed_everything"] for n in row.parts if "seed_everything" in (s := settings.parts[n])), None)
    cells = {
        "run": name,
        "status": row.summary.get("status"),
        "rounds": row.summary.get("rounds", progress.rounds),
        f"test {score.label}": _times(block.get("mean", progress.last(f"test_{score.name}")), unit),
        "worst tenth": _times(block.get("worst10"), unit),
        "seed": seed,
        "MB received": _times(_mapping(row.summary.get("received_per_client")).get("bytes"), 1e-6),
        "seconds": _times(_mapping(row.summary.get("seconds")).get("rounds"), 1.0),
        "changed": changed // 10**9,
        "note": "; ".join(notes) or None,
    }
    row.cells = {key: plain(value) for key, value in cells.items() if value is not None}


def status_of(folder: str) -> str:
    """Return `running` or `not finished` for a run without a summary, from the file that its process has left.

    The run's lock itself is not tried, because a process that wants it at this moment would be refused.

    Args:
        folder: the run folder.
    """
    try:
        about = json.loads(_read_text(f"{folder}{os.sep}.lock"))
        if about["host"] != socket.gethostname() or os.name != "posix":
            is_running = time.time() - os.stat(f"{folder}{os.sep}metrics.csv").st_mtime < _STALE
        else:
            os.kill(int(about["pid"]), 0)
            is_running = True
    except PermissionError:  # the process is that of another user
        is_running = True
    except (OSError, ValueError, TypeError, KeyError, OverflowError):
        is_running = False
    return RUNNING if is_running else NOT_FINISHED


@dataclass
class _Progress:
    """The last rounds of metrics.csv."""

    columns: list[str] = field(default_factory=list)
    lines: list[list[str]] = field(default_factory=list)

    @property
    def rounds(self) -> int:
        """The number of rounds that are done."""
        return int(self.lines[-1][0]) + 1 if self.lines else 0

    def last(self, column: str) -> float | None:
        """Return the last number of a column; None if there is none."""
        if column in self.columns:
            at = self.columns.index(column)
            for line in reversed(self.lines):
                with suppress(IndexError, ValueError):
                    return float(line[at])
        return None


def _read_progress(path: str) -> _Progress:
    """Read the head and the last lines of metrics.csv; a line that is just being written does not count."""
    with open(path, "rb") as file:
        head = file.readline(_TAIL)
        size = os.fstat(file.fileno()).st_size
        file.seek(max(len(head), size - _TAIL))
        tail = file.read(_TAIL)
    lines = tail[: tail.rfind(b"\n") + 1].decode("utf-8", "replace").splitlines()
    if size - len(head) > _TAIL:
        lines = lines[1:]  # its beginning is cut off
    split = [line.split(",") for line in lines]
    columns = head.decode("utf-8", "replace").strip().split(",")
    return _Progress(columns, [line for line in split if line[0].isdecimal()])


def _read_text(path: str) -> str:
    """Read a small text; empty if the file does not exist.

    Raises:
        OSError: it cannot be read.
        ValueError: it is too large, or not UTF-8.
    """
    try:
        descriptor = os.open(path, _FLAGS)
    except FileNotFoundError:
        return ""
    try:
        content = os.read(descriptor, _MOST_BYTES + 1)
    finally:
        os.close(descriptor)
    if len(content) > _MOST_BYTES:
        raise ValueError("it is too large")
    return content.decode("utf-8")


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _times(value: Any, unit: float) -> float | None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(f"{value * unit:.6g}") if is_number else None
