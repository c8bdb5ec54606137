"""Checksums of arrays, and the sentence part that says whose checksums differ."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

__all__ = ["NAMES", "changes", "checksum_of"]

NAMES = {"inputs": "inputs", "targets": "targets", "names": "names or categories", "division": "samples of each client"}
"""What a checksum is of, by its key; in the order in which differences are named."""

_THREADS = 4
_BYTES = 2**24  # at a time, so that no whole data set is ever copied


def checksum_of(tensors: Sequence[Tensor | None], about: object = None) -> int:
    """Return the CRC-32 of types, shapes and values, at a gigabyte and more in a second.

    It does not depend on how a tensor lies in memory, nor on the device.

    Args:
        tensors: in their order; None counts, too.
        about: plain values that come first, as their `repr`.
    """
    found = zlib.crc32(repr(about).encode())
    for tensor in tensors:
        found = zlib.crc32(b"none" if tensor is None else f"{tensor.dtype} {list(tensor.shape)}".encode(), found)
        if tensor is None or not tensor.numel():
            continue
        rows = max(1, _BYTES * len(tensor) // (tensor.numel() * tensor.element_size()))
        blocks = tensor.detach().split(rows)
        if len(blocks) == 1:
            checksums = [_of_block(blocks[0])]
        else:
            with ThreadPoolExecutor(_THREADS) as threads:  # Python's lock is free while a checksum is computed
                checksums = list(threads.map(_of_block, blocks))
        found = zlib.crc32(repr(checksums).encode(), found)
    return found


def _of_block(block: Tensor) -> int:
    return zlib.crc32(block.cpu().contiguous().view(-1).view(torch.uint8).numpy().data)


def changes(then: dict[str, int], now: dict[str, int]) -> str:
    """Return in words what differs between two sets of checksums; empty where nothing does.

    Args:
        then: as they were saved.
        now: of this run.
    """
    return " and the ".join(what for key, what in NAMES.items() if then.get(key) != now.get(key))
