"""Checksums of arrays, and a description of differences between checksums."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

__all__ = ["NAMES", "changes", "checksum_of"]

NAMES = {"inputs": "inputs", "targets": "targets", "names": "names or categories", "division": "samples of each client"}
"""Descriptions of checksums by their keys, in the order in which differences are listed."""

_THREADS = 4
_BYTES = 2**24  # size of a block, so that a whole data set is never copied


def checksum_of(tensors: Sequence[Tensor | None], about: object = None) -> int:
    """Compute the CRC-32 of the types, shapes and values of tensors, at more than a gigabyte per second.

    It depends neither on the memory layout of a tensor nor on the device.

    Args:
        tensors: the tensors in a fixed order; None is included in the checksum, too.
        about: plain values that are included by their `repr`.
    """
    checksum = zlib.crc32(repr(about).encode())
    for tensor in tensors:
        kind = b"none" if tensor is None else f"{tensor.dtype} {list(tensor.shape)}".encode()
        checksum = zlib.crc32(kind, checksum)
        if tensor is None or not tensor.numel():
            continue
        rows = max(1, _BYTES * len(tensor) // (tensor.numel() * tensor.element_size()))
        blocks = tensor.detach().split(rows)
        if len(blocks) == 1:
            checksums = [_of_block(blocks[0])]
        else:
            with ThreadPoolExecutor(_THREADS) as threads:  # zlib releases Python's lock while it computes a checksum
                checksums = list(threads.map(_of_block, blocks))
        checksum = zlib.crc32(repr(checksums).encode(), checksum)
    return checksum


def _of_block(block: Tensor) -> int:
    return zlib.crc32(block.cpu().contiguous().view(-1).view(torch.uint8).numpy().data)


def changes(then: dict[str, int], now: dict[str, int]) -> str:
    """Describe which of two sets of checksums differ; empty if none does.

    Args:
        then: the saved checksums.
        now: the checksums of this run.
    """
    return " and the ".join(what for key, what in NAMES.items() if then.get(key) != now.get(key))
