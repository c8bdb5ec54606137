"""Writing files so that a killed run never leaves half of one, and reading arrays of any origin."""

from __future__ import annotations

import math
import os
import zipfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from dfl_lightning.utils.errors import reason
from dfl_lightning.utils.memory import size
from dfl_lightning.utils.storage.checksums import check_directory

_UNPACKED = 100
_SMALL = 64 * 2**20


def unique_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """What `json` makes of an object (`object_pairs_hook`): a key that is there twice is refused, not overwritten.

    Raises:
        ValueError: a key is there twice.

    Examples:
        >>> import json
        >>> json.loads('{"a": 1, "b": 2}', object_pairs_hook=unique_pairs)
        {'a': 1, 'b': 2}
    """
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                start = ", ".join(f"{name!r}: {str(value)[:20]}" for name, value in pairs[:2])
                raise ValueError(f"the key {key[:40]!r} is there twice in {{{start}, …}}; keep one")
            seen.add(key)
    return found


def write_atomically(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write under a temporary name, sync and rename: a reader sees the old file or the complete new one.

    Args:
        path: of the file; its folder is made if needed.
        write: writes the content into the open file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.unlink(missing_ok=True)
        with open(temporary, "xb") as file:  # a new file, never through an existing link
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


def sync_file(path: Path) -> None:
    """Make what was appended to a file survive a power cut."""
    with open(path, "ab") as file:
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Make renames in a folder survive a power cut (where the system lets one open folders)."""
    if hasattr(os, "O_DIRECTORY"):
        descriptor = os.open(folder, os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def write_npz(path: Path, arrays: Mapping[str, np.ndarray], compressed: bool = False) -> None:
    """Write arrays as an npz file, atomically; read it with `numpy.load(path)`, no pickling.

    Args:
        path: of the file.
        arrays: by name.
        compressed: at zlib's level 1: lists of indices become 4 % larger than by `numpy.savez_compressed`, in an eighth
            of its time.
    """

    def write(file: BinaryIO) -> None:
        if not compressed:
            np.savez(file, allow_pickle=False, **arrays)
            return
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            for name, array in arrays.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=False)

    write_atomically(path, write)


def read_bounded(path: Path, most: int) -> bytes:
    """The content of a file; at most `most` + 1 bytes of it are ever in memory.

    Args:
        path: the file.
        most: bytes that it may have.

    Raises:
        OSError: it cannot be read.
        ValueError: it is larger.
    """
    with open(path, "rb") as file:
        length = os.fstat(file.fileno()).st_size
        content = file.read(most + 1) if length <= most else b""
    if length > most or len(content) > most:  # also of a file that grows, or that has no size
        raise ValueError(f"it has {size(max(length, len(content)))}, and at most {size(most)} are read")
    return content


def read_npz(path: Path, names: Iterable[str] | None = None, most: int | None = None) -> dict[str, np.ndarray]:
    """Arrays by name from an npz file of any origin; runs no code of it, and needs no memory out of proportion.

    Args:
        path: the file.
        names: of the arrays that are read; None: all.
        most: bytes that all arrays may have; None: any number.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no npz file, is damaged or holds other things than plain arrays, or one of them twice; or
            unpacks to more than `most`, or than a hundred times its size (and 64 MB).
    """
    if path.exists() and not path.is_file():  # a pipe would be waited for
        raise OSError(f"{path} is not a file")
    try:
        with zipfile.ZipFile(path) as archive:
            check_directory(path, archive)
            members: dict[str, zipfile.ZipInfo] = {}
            for info in archive.infolist():
                name = info.filename.removesuffix(".npy")
                if name in members:
                    raise ValueError(f"it has two arrays '{name[:40]}'")
                members[name] = info
            total = sum(info.file_size for info in members.values())
            if total > max(_UNPACKED * path.stat().st_size, _SMALL):
                raise ValueError(f"it would unpack to {size(total)}")
            if most is not None and total > most:
                raise ValueError(f"it has {size(total)} of arrays, and at most {size(most)} are read")
            return {name: _array(archive, members, name) for name in (members if names is None else names)}
    except (OSError, ValueError):
        raise
    except Exception as error:  # zip archives and array headers fail in many ways
        raise ValueError(reason(error)) from error


def _array(archive: zipfile.ZipFile, members: Mapping[str, zipfile.ZipInfo], name: str) -> np.ndarray:
    """A member of an npz archive, whose header is not believed before it fits the member's size."""
    if name not in members:
        raise ValueError(f"it has no array '{name}'")
    with archive.open(members[name]) as file:
        header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        version = np.lib.format.read_magic(file)
        if version not in header:
            raise ValueError(f"the array '{name}' has the unknown format {version}")
        shape, _, dtype = header[version](file)
        size = members[name].file_size - file.tell()
    if dtype.kind not in "biufcSU" or not dtype.itemsize:
        raise ValueError(f"the array '{name}' is {dtype}, not numbers or text")
    if math.prod(shape) * dtype.itemsize != size:
        raise ValueError(f"the array '{name}' is said to be {dtype} {list(shape)}, but has {size} bytes")
    with archive.open(members[name]) as file:
        array: np.ndarray = np.lib.format.read_array(file, allow_pickle=False)
        file.read(1)  # at its end the checksum is compared
    return array
