"""Locks of folders for one writing process, which the system releases when the process ends, even if it is killed."""

from __future__ import annotations

import json
import os
import socket
import time
from contextlib import suppress
from pathlib import Path

from dfl_lightning.utils.errors import UserError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

NAME = ".lock"
"""Name of the file in the folder that identifies the writing process."""

_held: set[int] = set()
"""Descriptors of the locks of this process."""


class FolderLock:
    """A lock of a folder, held from `take` to `release` or to the end of this process.

    It is a lock of the system (`flock`) on a file. The file alone, if a killed process has left it, locks nothing.

    Attributes:
        missing: reason why this folder cannot be locked; empty if it can.
    """

    def __init__(self) -> None:
        self.missing = ""
        self._file: Path | None = None
        self._descriptor = -1

    def take(self, folder: Path) -> None:
        """Lock a folder for writing by this process.

        If the system or the file system does not support locks, `missing` is set instead.

        Raises:
            UserError: another process has the lock (the message names it), or the folder cannot be written.
        """
        self.release()
        self.missing = ""
        if fcntl is None:
            self.missing = "this system has none"
            return
        file = folder / NAME
        try:
            descriptor = _lock(file)
        except BlockingIOError:
            raise UserError(
                f"{folder}: {_holder(file)} writes into this run; wait until it ends, or start a new run with --fork"
            ) from None
        except OSError as error:
            raise UserError(f"{folder}: the run folder cannot be written ({error.strerror})") from error
        if descriptor is None:
            self.missing = "the file system has none"
            return
        self._file, self._descriptor = file, descriptor
        _held.add(descriptor)
        about = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
        try:
            os.ftruncate(descriptor, 0)
            os.write(descriptor, json.dumps(about).encode())
        except OSError as error:
            self.release()
            raise UserError(f"{folder}: the run folder cannot be written ({error.strerror})") from error

    @property
    def descriptor(self) -> int | None:
        """Descriptor of the locked file, for a process that keeps the lock after this one; None without a lock."""
        return self._descriptor if self._file is not None else None

    def release(self) -> None:
        """Release the lock, if this process has it."""
        if self._file is not None and self._descriptor in _held:
            with suppress(OSError):  # a file that remains locks nothing
                if _is_same_file(self._file, self._descriptor):
                    self._file.unlink()  # while this process still has the lock, the file cannot be another process'
            os.close(self._descriptor)
            _held.discard(self._descriptor)
        self._file, self._descriptor = None, -1


def is_locked(folder: Path) -> bool:
    """Return True if a process has the lock of a folder; False also if the file system does not support locks."""
    if fcntl is None:
        return False
    try:
        descriptor = os.open(folder / NAME, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        # The lock is held for a moment only; a process that tries to lock the folder meanwhile is refused.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except (BlockingIOError, PermissionError):
        return True
    except OSError:  # the file system does not support locks
        return False
    finally:
        os.close(descriptor)


def _lock(file: Path) -> int | None:
    """Lock a file and return its descriptor; None if the file system does not support locks.

    Raises:
        BlockingIOError: another process has the lock.
        OSError: the file cannot be made.
    """
    while True:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_same_file(file, descriptor):
                return descriptor
        except (BlockingIOError, PermissionError) as error:  # file systems raise one or the other
            os.close(descriptor)
            raise BlockingIOError from error
        except OSError:  # the only other error without waiting means that the file system does not support locks
            os.close(descriptor)
            file.unlink(missing_ok=True)
            return None
        os.close(descriptor)  # the process that had the lock has removed the file since it was opened


def _is_same_file(file: Path, descriptor: int) -> bool:
    """Return True if a path still leads to the file that a descriptor was opened for."""
    try:
        return os.path.samestat(os.stat(file), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _holder(file: Path) -> str:
    """Describe the process that has a lock."""
    try:
        about = json.loads(file.read_bytes())
        return f"process {int(about['pid'])} on {about['host']} (since {about['since']})"
    except (OSError, ValueError, TypeError, KeyError):  # the process has locked the file but not written it yet
        return "another process"


def _forget() -> None:
    """Close the locked files in a forked child, which could outlive this process and keep its locks."""
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
