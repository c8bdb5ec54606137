"""All runs below some folders, read again only where something has changed."""

from __future__ import annotations

import hashlib
import os
import secrets
import stat
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from dfl_lightning.bench.report.collection.finding import METRICS
from dfl_lightning.bench.report.watch.rows import RunRow, read_row, status_of
from dfl_lightning.bench.report.watch.settings import SettingsReader

LEAST_GAP, SHARE = 1.0, 0.05
"""Least seconds between two looks at the folders, and the largest share of the time that they take."""

_SETTLED = 2e9
"""Nanoseconds after a change in which another one may leave the same time, on file systems with rough clocks."""


@dataclass
class _Folder:
    """The content of a folder when it was last listed.

    Attributes:
        changed: time of its last change, in nanoseconds; -1 if it has to be listed again.
        metrics: time of the last change and size of its metrics.csv; None if it is not that of a run.
        inner: paths of the folders in it.
    """

    changed: int = -1
    metrics: tuple[int, int] | None = None
    inner: list[str] = field(default_factory=list)


class Collection:
    """The runs below some folders.

    A look at folders that have not changed takes a system call for each folder, and one for each run's metrics.csv.

    Args:
        roots: the folders.

    Attributes:
        title: the folders, as they were given.
        roots: their absolute paths.
        start: text that differs from that of any other collection, so that a browser notices a new server.
        answered: set when a browser has had all rows for the first time.
    """

    def __init__(self, roots: Sequence[str | os.PathLike[str]]) -> None:
        self.title = ", ".join(map(str, roots))
        self.roots = [os.path.abspath(root) for root in roots]
        self.start = secrets.token_hex(8)
        self.answered, self._looked = threading.Event(), threading.Event()
        self._settings = SettingsReader()
        self._folders: dict[str, _Folder] = {}
        self._rows: dict[str, RunRow] = {}
        self._paths: dict[str, str] = {}
        self._gone: dict[str, int] = {}
        self._version = 0
        self._next = 0.0
        self._name: Callable[[RunRow], str] | None = None
        self._changing, self._scanning = threading.Lock(), threading.Lock()

    def refresh(self, at_once: bool = False) -> None:
        """Look for changes, unless another thread does, or the last look was a moment ago.

        Args:
            at_once: True to look even if the last look was a moment ago.
        """
        if (time.perf_counter() < self._next and not at_once) or not self._scanning.acquire(blocking=False):
            return
        try:
            began = time.perf_counter()
            self._scan()
            self._looked.set()
            took = time.perf_counter() - began
            self._next = time.perf_counter() + max(LEAST_GAP, took / SHARE)
        finally:
            self._scanning.release()

    def name_methods(self, name: Callable[[RunRow], str]) -> None:
        """Fill the column of methods, now and for all rows that are read later.

        Args:
            name: function that names the method of a run.
        """
        with self._scanning:
            self._name = name
            for row in list(self._rows.values()):
                self._commit(row, {**row.cells, "method": self._method_of(row)})

    def since(self, version: int, parts: int = 0, patience: float = 0.0) -> dict[str, Any]:
        """Return what has changed since an earlier answer, made of JSON's types.

        Args:
            version: `version` of the earlier answer; 0 for all rows.
            parts: number of the parts of configs that the answers so far had.
            patience: seconds that may be spent in waiting for the first look at the folders to end.
        """
        self._looked.wait(patience)
        with self._changing:
            rows = [(row.id, row.cells, row.parts) for row in self._rows.values() if row.version > version]
            gone = [id for id, when in self._gone.items() if when > version] if version else []
            answer = {"start": self.start, "version": self._version, "busy": self.is_busy, "gone": gone}
            added = self._settings.parts[parts:]
        columns = list(dict.fromkeys(column for _, cells, _ in rows for column in cells))
        # A list of cells is a third of the text of a mapping, and is parsed in a third of the time.
        listed = [[id, [cells.get(name) for name in columns], numbers] for id, cells, numbers in rows]
        if not self.is_busy:
            self.answered.set()
        return {**answer, "title": self.title, "columns": columns, "rows": listed, "parts": added}

    @property
    def parts(self) -> list[dict[str, Any]]:
        """The settings of the parts of all configs, see `SettingsReader`."""
        return self._settings.parts

    @property
    def is_busy(self) -> bool:
        """True while the folders are searched for the first time."""
        return not self._looked.is_set()

    def folder_of(self, id: str) -> str | None:
        """Return the folder of a run; None if the run is unknown.

        Args:
            id: name of the run in addresses.
        """
        path = self._paths.get(id)
        return path if path in self._rows else None

    # --- looking ------------------------------------------------------------------------------------------------------
    def _scan(self) -> None:
        """Visit all folders, and read the runs that have changed."""
        seen: set[str] = set()
        for root in self.roots:
            self._visit(root, seen)
        for path in self._folders.keys() - seen:
            del self._folders[path]
        for path in [path for path in self._rows if path not in seen or self._folders[path].metrics is None]:
            with self._changing:
                self._version += 1
                self._gone[self._rows.pop(path).id] = self._version

    def _visit(self, root: str, seen: set[str]) -> None:
        """Visit a root and all folders below it, read the runs that have changed, and add the paths to `seen`."""
        waiting = [root]
        while waiting:
            path = waiting.pop()
            folder = self._folders.get(path)
            try:
                changed = os.stat(path).st_mtime_ns
                if folder is None or folder.changed != changed:
                    folder = self._folders[path] = _listed(path, changed)
                    is_new = True
                elif folder.metrics is None or self._rows[path].is_over:
                    is_new = False
                else:
                    former, folder.metrics = folder.metrics, _stamp(f"{path}{os.sep}{METRICS}")
                    is_new = former != folder.metrics
            except OSError:  # it has just been removed, or must not be read
                if path == root:
                    self._folders[path] = _Folder()
                    seen.add(path)
                continue
            seen.add(path)
            if folder.metrics is not None:
                self._update(path, folder.metrics, is_new)
            else:
                waiting.extend(folder.inner)

    def _update(self, path: str, stamp: tuple[int, int], is_new: bool) -> None:
        """Read a run if it has changed, or may have ended without a trace."""
        row = self._rows.get(path)
        if row is not None and not is_new:
            if not row.is_over and row.cells.get("status") != (status := status_of(path)):
                self._commit(row, {**row.cells, "status": status})
            return
        shown = self._shown(path)
        fresh = RunRow(path, self._id_of(path, shown) if row is None else row.id)
        read_row(fresh, shown, stamp[0], self._settings)
        if not fresh.is_over:
            fresh.cells["status"] = status_of(path)
        if self._name is not None:
            fresh.cells["method"] = self._method_of(fresh)
        if row is None or (row.cells, row.parts) != (fresh.cells, fresh.parts):
            self._commit(fresh, fresh.cells)

    def _method_of(self, row: RunRow) -> str:
        """Name the method of a run, and forget what only its name needs."""
        assert self._name is not None
        name = self._name(row)
        row.summary = {}
        return name

    def _commit(self, row: RunRow, cells: dict[str, Any]) -> None:
        with self._changing:
            self._version += 1
            row.cells, row.version = cells, self._version
            self._rows[row.folder] = row
            self._gone.pop(row.id, None)

    def _id_of(self, path: str, shown: str) -> str:
        """Return a name for addresses that is the same in each server, and in which no path can be written."""
        digits = 12
        while self._paths.setdefault(id := _digest(shown, digits), path) != path:
            digits += 2
        return id

    def _shown(self, path: str) -> str:
        """Return the name of a run: its path below the root, with the root's name if there are several."""
        root = max((root for root in self.roots if path == root or path.startswith(root + os.sep)), key=len)
        inner = path[len(root) + 1 :]
        if len(self.roots) == 1 and inner:
            return inner
        return os.path.join(os.path.basename(root), inner) if inner else os.path.basename(root)


def _digest(text: str, digits: int) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=32).hexdigest()[:digits]


def _listed(path: str, changed: int) -> _Folder:
    """List a folder; one that has changed a moment ago is to be listed again."""
    now, metrics, inner = time.time_ns(), None, []
    with os.scandir(path) as entries:
        for entry in entries:
            if entry.name == METRICS:
                metrics = _stamp(entry.path)
            elif not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False):
                inner.append(entry.path)
    return _Folder(changed if now - changed > _SETTLED else -1, metrics, sorted(inner, reverse=True))


def _stamp(path: str) -> tuple[int, int] | None:
    """Return time of change and size of a file; None if it is not a plain file."""
    try:
        about = os.stat(path)
    except OSError:
        return None
    return (about.st_mtime_ns, about.st_size) if stat.S_ISREG(about.st_mode) else None
