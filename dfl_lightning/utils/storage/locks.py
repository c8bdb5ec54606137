"""One writer for a folder: a lock that the system lets go of when its process ends, in whatever way."""

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
"""The file in the folder that names the process that writes there."""

_held: set[int] = set()
"""Descriptors of the locks of this process."""


class FolderLock:
    """Held from `take` to `release`, or to the end of this process.

    The lock is the system's (`flock`), not the file's existence: a file that a killed process has left locks nothing.

    Attributes:
        missing: why this folder cannot have a lock, empty where it can.
    """

    def __init__(self) -> None:
        self.missing = ""
        self._file: Path | None = None
        self._descriptor = -1

    def take(self, folder: Path) -> None:
        """Become the one who writes into a folder.

        Raises:
            UserError: another process holds it (the sentence says which and since when), or it cannot be locked.
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
        """Of the locked file, for a process that is to keep the lock after this one; None where it is not held."""
        return self._descriptor if self._file is not None else None

    def release(self) -> None:
        """Let others write. Nothing where it is not held."""
        if self._file is not None and self._descriptor in _held:
            with suppress(OSError):  # a file that stays locks nothing
                if _is_still(self._file, self._descriptor):
                    self._file.unlink()  # before the lock is released, so that it is no other process's
            os.close(self._descriptor)
            _held.discard(self._descriptor)
        self._file, self._descriptor = None, -1


def is_locked(folder: Path) -> bool:
    """Whether a process holds the lock of a folder, as far as the file system can tell."""
    if fcntl is None:
        return False
    try:
        descriptor = os.open(folder / NAME, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(
            descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB
        )  # for a moment: another process that wants it tries again
        return False
    except (BlockingIOError, PermissionError):
        return True
    except OSError:  # not supported there
        return False
    finally:
        os.close(descriptor)


def _lock(file: Path) -> int | None:
    """A descriptor of the locked file; None where the file system has no locks.

    Raises:
        BlockingIOError: another process has the lock.
        OSError: the file cannot be made.
    """
    while True:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_still(file, descriptor):
                return descriptor
        except (BlockingIOError, PermissionError) as error:  # which of them, is the file system's choice
            os.close(descriptor)
            raise BlockingIOError from error
        except OSError:  # not supported there: the only other error of a lock that does not wait
            os.close(descriptor)
            file.unlink(missing_ok=True)
            return None
        os.close(descriptor)  # its holder has removed it since it was opened


def _is_still(file: Path, descriptor: int) -> bool:
    """Whether a name still means the file that was opened by it."""
    try:
        return os.path.samestat(os.stat(file), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _holder(file: Path) -> str:
    """The process that holds a lock, in words."""
    try:
        about = json.loads(file.read_bytes())
        return f"process {int(about['pid'])} on {about['host']} (since {about['since']})"
    except (OSError, ValueError, TypeError, KeyError):  # it has this lock, and has not said yet who it is
        return "another process"


def _forget() -> None:
    """In a forked child, which could outlive this process and keep its lock."""
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
