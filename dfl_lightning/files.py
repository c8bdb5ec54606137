"""Writing files so that a killed run never leaves half of one."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import BinaryIO

import numpy as np


def write_atomically(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write under a temporary name, sync, rename: readers see the old file or the whole new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def remove_unfinished(folder: Path) -> None:
    """Remove what processes that were killed in the middle of `write_atomically` have left in a folder and below it."""
    for file in folder.rglob(".*.tmp"):
        if file.stem.rpartition(".")[2].isdigit():
            file.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Make renames in a folder survive a power cut (where the system lets one open folders)."""
    if hasattr(os, "O_DIRECTORY"):
        descriptor = os.open(folder, os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def write_npz(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Arrays by name as an npz file, atomically; read it with `numpy.load(path)`, no pickling."""
    write_atomically(path, lambda file: np.savez(file, allow_pickle=False, **arrays))
