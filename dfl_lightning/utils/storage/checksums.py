"""Checksums: whether what is read is what was written.

`torch.save` writes a zip archive with a CRC-32 for every member, and `torch.load` does not compare them.
"""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

_BLOCK = 2**20
_END, _TAIL = b"PK\5\6", 2**16 + 22  # how the last record of an archive begins, and where at the earliest
_MANY = 2**16 - 1  # in the place of larger numbers


class Damaged(ValueError):
    """What is read is not what was written; the message says which part of it."""


def check_archive(path: Path, largest: int | None = None) -> None:
    """Compare the members of a file of `torch.save` with the checksums in it.

    Args:
        path: the file.
        largest: members of more bytes are not read; None: all are.

    Raises:
        Damaged: a checksum does not match, or it is no such archive.
        OSError: it cannot be read.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            check_directory(path, archive)
            for info in archive.infolist():
                packed = info.compress_type != zipfile.ZIP_STORED or info.compress_size != info.file_size
                if packed or info.external_attr:  # torch takes a member with attributes for a folder, and reads nothing
                    raise Damaged(f"the archive says what torch does not write about {info.filename}")
                if largest is None or info.file_size <= largest:
                    with archive.open(info) as member:
                        while member.read(_BLOCK):  # compares the checksum at the end
                            pass
    except (Damaged, OSError):
        raise
    except Exception as error:  # an archive can be damaged in many ways
        raise Damaged(" ".join(str(error).split()) or type(error).__name__) from error


def check_directory(path: Path, archive: zipfile.ZipFile) -> None:
    """Refuse an archive whose directory disagrees with its end record: a changed length of an entry hides later ones.

    Args:
        path: of the archive.
        archive: the same, open.

    Raises:
        Damaged: says how many members are readable, and how many there should be.
    """
    with open(path, "rb") as file:
        file.seek(-min(path.stat().st_size, _TAIL), os.SEEK_END)
        tail = file.read()
    at = tail.rfind(_END)  # of the record that ends an archive: two bytes from its tenth on count the members
    said, found = int.from_bytes(tail[at + 10 : at + 12], "little"), len(archive.infolist())
    if said not in (found, _MANY):
        raise Damaged(f"the archive has {found} readable members of {said}")


def checksum(tensor: Tensor) -> int:
    """CRC-32 of a tensor's bytes, row by row."""
    import torch  # here: --help must not wait for torch

    return zlib.crc32(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)


@contextmanager
def written_with_checksums() -> Iterator[None]:
    """`torch.save` writes checksums, whatever `torch.serialization.set_crc32_options` was told."""
    from torch import serialization as settings

    if not hasattr(settings, "set_crc32_options"):  # before torch 2.6 it always does
        yield
        return
    before = settings.get_crc32_options()
    settings.set_crc32_options(True)
    try:
        yield
    finally:
        settings.set_crc32_options(before)
