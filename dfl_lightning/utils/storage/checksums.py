"""Checksums, which detect damage of files.

`torch.save` writes a zip archive with a CRC-32 of each member, which `torch.load` does not compare.
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
_END, _TAIL = b"PK\5\6", 2**16 + 22  # first bytes of an archive's last record, and its largest distance from the end
_MANY = 2**16 - 1  # the number of members in the record if there are more


class Damaged(ValueError):
    """A file is damaged; the message names the part."""


def check_archive(path: Path, largest: int | None = None) -> None:
    """Compare the members of a file of `torch.save` with the checksums in it.

    Args:
        path: the file.
        largest: largest size in bytes of members that are checked; None: all are.

    Raises:
        Damaged: a checksum does not match, or the file is not an archive of `torch.save`.
        OSError: the file cannot be read.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            check_directory(path, archive)
            for info in archive.infolist():
                packed = info.compress_type != zipfile.ZIP_STORED or info.compress_size != info.file_size
                # Torch takes a member with attributes for a folder and does not read it.
                if packed or info.external_attr:
                    raise Damaged(f"the archive says what torch does not write about {info.filename}")
                if largest is None or info.file_size <= largest:
                    with archive.open(info) as member:
                        while member.read(_BLOCK):  # zipfile compares the checksum at the end of the member
                            pass
    except (Damaged, OSError):
        raise
    except Exception as error:  # zipfile raises many types of errors on damaged archives
        raise Damaged(" ".join(str(error).split()) or type(error).__name__) from error


def check_directory(path: Path, archive: zipfile.ZipFile) -> None:
    """Raise if the directory of an archive disagrees with its last record about the number of members.

    A damaged length of an entry hides the entries after it.

    Args:
        path: the archive.
        archive: the same archive, opened.

    Raises:
        Damaged: some members cannot be read.
    """
    with open(path, "rb") as file:
        file.seek(-min(path.stat().st_size, _TAIL), os.SEEK_END)
        tail = file.read()
    start = tail.rfind(_END)  # the record has the number of members in its two bytes from the tenth on
    expected, readable = int.from_bytes(tail[start + 10 : start + 12], "little"), len(archive.infolist())
    if expected not in (readable, _MANY):
        raise Damaged(f"the archive has {readable} readable members of {expected}")


def checksum(tensor: Tensor) -> int:
    """Compute the CRC-32 of a tensor's bytes, in the order of its elements."""
    import torch  # imported here, since --help must not wait for torch

    return zlib.crc32(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)


@contextmanager
def written_with_checksums() -> Iterator[None]:
    """Make `torch.save` write checksums inside a block, even if `torch.serialization.set_crc32_options` is off."""
    from torch import serialization as settings

    if not hasattr(settings, "set_crc32_options"):  # before version 2.6 torch always writes them
        yield
        return
    before = settings.get_crc32_options()
    settings.set_crc32_options(True)
    try:
        yield
    finally:
        settings.set_crc32_options(before)
