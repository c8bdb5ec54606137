"""Reproducible matrix products: in full precision, by one thread each."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from threadpoolctl import ThreadpoolController
from torch import Tensor

GPU_BYTES = 2**28
"""Bytes of the second operand that are converted to float64 at a time."""


def product(a: Tensor, b: Tensor) -> Tensor:
    """Multiply two matrices in the precision of their dtype or a higher one, whatever torch's matmul precision is.

    On a CPU numpy computes the product: its float32 product never uses bfloat16, and its `x @ x.T` calls BLAS' `syrk`,
    which does half the work and is symmetric bit for bit; torch has no counterpart. On a GPU the product is computed in
    float64, since float32 may mean TF32 there.

    Args:
        a: contiguous, [r, k].
        b: [k, c], of the same dtype and device.
    """
    if a.device.type == "cpu":
        with np.errstate(all="ignore"):  # as torch, do not warn about infinity and NaN
            return torch.from_numpy(a.numpy() @ b.numpy())
    if a.dtype == torch.float64:
        return a @ b
    wide, width = a.double(), max(256, GPU_BYTES // (8 * max(1, len(b))))
    parts = [(wide @ b[:, start : start + width].double()).to(a.dtype) for start in range(0, b.shape[1], width)]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


def scratch(size: int, like: Tensor) -> Callable[[int, int], Tensor]:
    """Return a function that makes contiguous matrices of up to `size` numbers, all in one piece of memory.

    Allocating fresh memory for each block would take as long as reading the block.

    Args:
        size: number of entries of the largest matrix.
        like: a tensor whose type and device the matrices have.

    Returns:
        A function (rows, columns) -> an uninitialised matrix, valid until the next call.
    """
    memory = torch.empty(size, dtype=like.dtype, device=like.device)
    return lambda rows, columns: memory[: rows * columns].view(rows, columns)


@functools.cache
def _libraries() -> ThreadpoolController:
    return ThreadpoolController()  # cached, as it inspects all loaded libraries; numpy's is loaded by the import above


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Limit numpy's products to one thread each, so that their bits do not depend on the number of cores."""
    with _libraries().limit(limits=1, user_api="blas"):
        yield
