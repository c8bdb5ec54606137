"""Writing of files such that a killed run never leaves half of one, and safe reading of arrays."""

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
    """Build a dictionary from the pairs of a JSON object, as `object_pairs_hook`, and refuse repeated keys.

    Raises:
        ValueError: a key occurs twice.

    Examples:
        >>> import json
        >>> json.loads('{"a": 1, "b": 2}', object_pairs_hook=unique_pairs)
        {'a': 1, 'b': 2}
    """
    unique = dict(pairs)
    if len(unique) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                start = ", ".join(f"{name!r}: {str(value)[:20]}" for name, value in pairs[:2])
                raise ValueError(f"the key {key[:40]!r} is there twice in {{{start}, …}}; keep one")
            seen.add(key)
    return unique


def write_atomically(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a file under a temporary name, sync and rename it, so that readers see the old or the complete new file.

    Args:
        path: the file; its folder is made if needed.
        write: function that writes the content into the open file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.unlink(missing_ok=True)
        with open(temporary, "xb") as file:  # mode x makes a new file and never follows an existing link
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def remove_unfinished(folder: Path) -> None:
    """Remove temporary files below a folder that killed processes have left in the middle of `write_atomically`."""
    for file in folder.rglob(".*.tmp"):
        if file.stem.rpartition(".")[2].isdigit():
            file.unlink(missing_ok=True)


def sync_file(path: Path) -> None:
    """Write a file's appended content to the disk, so that it survives a power cut."""
    with open(path, "ab") as file:
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Write a folder's entries to the disk, so that renames survive a power cut; some systems do not support this."""
    if hasattr(os, "O_DIRECTORY"):
        descriptor = os.open(folder, os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def write_npz(path: Path, arrays: Mapping[str, np.ndarray], compressed: bool = False) -> None:
    """Write arrays as an npz file without pickling, atomically; `numpy.load(path)` reads it.

    Args:
        path: the file.
        arrays: arrays by name.
        compressed: True to compress by zlib's level 1: lists of indices become 4 % larger than by
            `numpy.savez_compressed`, in an eighth of its time.
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
    """Read a file of limited size, with at most `most` + 1 bytes of it in memory.

    Args:
        path: the file.
        most: largest number of bytes.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file is larger.
    """
    with open(path, "rb") as file:
        length = os.fstat(file.fileno()).st_size
        content = file.read(most + 1) if length <= most else b""
    if length > most or len(content) > most:  # the second also refuses a file that grows, or does not have a size
        raise ValueError(f"it has {size(max(length, len(content)))}, and at most {size(most)} are read")
    return content


def read_npz(path: Path, names: Iterable[str] | None = None, most: int | None = None) -> dict[str, np.ndarray]:
    """Read arrays by name from an npz file of any origin, without running code of the file and with bounded memory.

    Args:
        path: the file.
        names: names of the arrays to read; None: all.
        most: largest number of bytes of all arrays together; None: no limit.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file is not an npz file, is damaged, or contains other objects than plain arrays or an array
            twice; or its arrays have more than `most` bytes, or more than a hundred times its size (and 64 MB).
    """
    if path.exists() and not path.is_file():  # reading a pipe would wait for its writer
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
    except Exception as error:  # readers of zip archives and array headers raise many types of errors
        raise ValueError(reason(error)) from error


def _array(archive: zipfile.ZipFile, members: Mapping[str, zipfile.ZipInfo], name: str) -> np.ndarray:
    """Read a member of an npz archive, after checking that its header fits the member's size."""
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
        file.read(1)  # zipfile compares the checksum at the end of the member
    return array
