"""One writer for a folder, whatever becomes of the processes that write there."""

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys

import pytest

from dfl_lightning.utils.errors import UserError
from dfl_lightning.utils.storage import locks
from dfl_lightning.utils.storage.locks import FolderLock

HOLD = """
import os, sys, time
from pathlib import Path
from dfl_lightning.utils.storage.locks import FolderLock
lock = FolderLock()
lock.take(Path(sys.argv[1]))
if not os.fork():
    print(os.getpid(), flush=True)  # said by the child: until it has run, it is a copy that holds the lock
time.sleep(600)
"""


@pytest.fixture
def lock(tmp_path):
    lock = FolderLock()
    lock.take(tmp_path)
    yield lock
    lock.release()


def test_a_second_writer_is_refused_naming_the_first(lock, tmp_path):
    about = json.loads((tmp_path / ".lock").read_text())
    assert about["pid"] == os.getpid()
    other = FolderLock()
    for _ in range(2):
        with pytest.raises(UserError) as refusal:
            other.take(tmp_path)
        assert str(refusal.value) == (
            f"{tmp_path}: process {os.getpid()} on {about['host']} (since {about['since']}) writes into this run; "
            "wait until it ends, or start a new run with --fork"
        )
    lock.release()
    assert not list(tmp_path.iterdir())
    other.take(tmp_path)
    other.release()
    other.release()
    assert not list(tmp_path.iterdir())


def test_a_lock_without_a_name_counts(lock, tmp_path):
    (tmp_path / ".lock").write_text("[]")
    with pytest.raises(UserError, match=": another process writes into this run"):
        FolderLock().take(tmp_path)


def test_a_lock_file_without_a_holder_locks_nothing(tmp_path):
    (tmp_path / ".lock").write_text('{"pid": 1, "host": "here", "since": "always, and for a very long time"}')
    lock = FolderLock()
    lock.take(tmp_path)
    assert json.loads((tmp_path / ".lock").read_text())["pid"] == os.getpid()
    lock.release()


def test_a_killed_process_with_children_leaves_no_lock(tmp_path):
    words = [sys.executable, "-W", "ignore", "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        child = int(process.stdout.readline())
        try:
            with pytest.raises(UserError, match=f": process {process.pid} on "):
                FolderLock().take(tmp_path)
            process.kill()
            process.wait()
            os.kill(child, 0)  # is still there
            lock = FolderLock()
            lock.take(tmp_path)
            lock.release()
        finally:
            os.kill(child, signal.SIGKILL)
            process.kill()


def test_a_lock_on_a_removed_file_is_acquired_again(tmp_path, monkeypatch):
    flock, removed = fcntl.flock, []

    def late(descriptor, how):
        if not removed:
            removed.append((tmp_path / ".lock").unlink())
        flock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", late)
    lock = FolderLock()
    lock.take(tmp_path)
    assert removed
    with pytest.raises(UserError, match="writes into this run"):
        FolderLock().take(tmp_path)
    lock.release()


def test_releasing_a_moved_folder_keeps_the_new_lock(tmp_path):
    (tmp_path / "run").mkdir()
    lock, other = FolderLock(), FolderLock()
    lock.take(tmp_path / "run")
    (tmp_path / "run").rename(tmp_path / "moved")
    (tmp_path / "run").mkdir()
    other.take(tmp_path / "run")
    lock.release()
    with pytest.raises(UserError, match="writes into this run"):
        FolderLock().take(tmp_path / "run")
    other.release()


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_system_without_locks_is_reported(tmp_path, monkeypatch, number):
    def refuse(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    lock = FolderLock()
    lock.take(tmp_path)
    assert lock.missing == "the file system has none"
    assert not list(tmp_path.iterdir())
    lock.release()
    monkeypatch.setattr(locks, "fcntl", None)
    lock.take(tmp_path)
    assert lock.missing == "this system has none"


def test_a_full_disk_is_reported_and_leaves_no_lock(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(UserError, match=r"cannot be written \(No space left"):
            FolderLock().take(tmp_path)
    assert not list(tmp_path.iterdir())
    with pytest.raises(UserError, match=r"cannot be written \(No such file"):
        FolderLock().take(tmp_path / "nowhere")


def test_is_locked_tells_whether_a_folder_is_locked(tmp_path):
    assert not locks.is_locked(tmp_path)
    lock = FolderLock()
    assert lock.descriptor is None
    lock.take(tmp_path)
    assert locks.is_locked(tmp_path)
    lock.release()
    assert lock.descriptor is None
    assert not locks.is_locked(tmp_path)


def test_a_process_that_gets_the_descriptor_keeps_the_lock(tmp_path):
    lock = FolderLock()
    lock.take(tmp_path)
    command = [sys.executable, "-S", "-c", "import sys; sys.stdin.read()"]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=(lock.descriptor,))
    os.close(lock.descriptor)  # as if this process had been killed
    locks._held.discard(lock.descriptor)
    assert locks.is_locked(tmp_path)
    with pytest.raises(UserError, match="writes into this run"):
        FolderLock().take(tmp_path)
    child.communicate()
    assert not locks.is_locked(tmp_path)
