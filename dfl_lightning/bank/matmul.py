"""Matrix products that keep every bit they can: no reduced precision, and one thread each."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from threadpoolctl import ThreadpoolController
from torch import Tensor

GPU_BYTES = 2**28
"""How much of the second operand is copied in float64 at a time."""


def product(a: Tensor, b: Tensor) -> Tensor:
    """`a @ b` in the arithmetic of their dtype or a better one, whatever precision torch's own products are set to.

    On a CPU numpy does it: its float32 product knows no bfloat16, and its `x @ x.T` is BLAS' `syrk`, which does half
    the work and is symmetric bit for bit; torch has none. On a GPU float64 does it, for float32 may mean TF32 there.

    Args:
        a: contiguous, [r, k].
        b: [k, c], of the same dtype and device.
    """
    if a.device.type == "cpu":
        with np.errstate(all="ignore"):  # infinity and NaN are numbers like any other, as in torch
            return torch.from_numpy(a.numpy() @ b.numpy())
    if a.dtype == torch.float64:
        return a @ b
    wide, width = a.double(), max(256, GPU_BYTES // (8 * max(1, len(b))))
    parts = [(wide @ b[:, start : start + width].double()).to(a.dtype) for start in range(0, b.shape[1], width)]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


def scratch(size: int, like: Tensor) -> Callable[[int, int], Tensor]:
    """Contiguous matrices of up to `size` numbers that share one piece of memory: fresh memory costs as much as a pass.

    Args:
        size: numbers of the largest matrix.
        like: a tensor whose type and device the matrices have.

    Returns:
        A function (rows, columns) -> an uninitialised matrix, valid until the next call.
    """
    memory = torch.empty(size, dtype=like.dtype, device=like.device)
    return lambda rows, columns: memory[: rows * columns].view(rows, columns)


@functools.cache
def _libraries() -> ThreadpoolController:
    return ThreadpoolController()  # looks through the loaded libraries once; numpy's is among them since its import


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Numpy's products run in the thread that asks for them: bits do not depend on the machine's number of cores."""
    with _libraries().limit(limits=1, user_api="blas"):
        yield
