"""Tests of a network for interaction between the samples of a batch: some are replaced, the others compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from dfl_lightning.utils.errors import is_out_of_memory

Run = Callable[[Tensor], Sequence[Tensor]]
"""Inputs [B, ...] -> outputs [B, ...], then the buffers as the pass leaves them; from the same state in each call."""

FEW = 8
"""Largest number of samples that are cut so that every pair is separated; more are cut into two random halves.

This suffices, since code that lets samples interact does so for many pairs.
"""


def samples_interact(run_on: Callable[[torch.device], Run], inputs: Tensor) -> bool:
    """Return True if an output depends on other samples' inputs, or a buffer on any inputs, by as little as one bit.

    Batches of one shape go through the same arithmetic, so that any change comes from another sample. Inputs beyond
    the range of the data are tried on the CPU only: there an index out of range is an ordinary error, but on a GPU it
    ends all work.

    Args:
        run_on: a device -> the network on it.
        inputs: [B, ...], with few equal samples.
    """
    run, others = run_on(inputs.device), inputs.roll(1, 0)
    base = run(inputs)
    whole = (inputs == inputs.round()).all(0)  # Integers may be indices of a table, so they keep the data's range.
    on_cpu = inputs.device.type == "cpu"
    if bool(whole.all()):
        return _some_interact(run, inputs, others, base)
    if not on_cpu and _some_interact(run, inputs, others, base):
        return True
    try:
        if on_cpu:
            return _some_interact(run, inputs, others.where(whole, _exaggerated(others)), base)
        return samples_interact(run_on, inputs.cpu())
    except Exception as error:  # The network needs inputs in the data's range, or a GPU; try inputs of the data.
        if is_out_of_memory(error):
            raise  # This says nothing about the network.
        return on_cpu and _some_interact(run, inputs, others, base)


def place_matters(run: Run, inputs: Tensor) -> bool:
    """Return True if outputs depend on a sample's place in its batch or on the batch size, beyond rounding.

    Args:
        run: the network.
        inputs: [B, ...], at least two samples.
    """
    base = run(inputs)[0]
    order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(1))
    cut = len(order) // 3 + 1
    pieces = [run(inputs.index_select(0, part.to(inputs.device)))[0] for part in (order[:cut], order[cut:])]
    return not close(torch.cat(pieces), base.index_select(0, order.to(base.device)))


def halves(count: int) -> list[Tensor]:
    """Return masks that cut `count` samples in two, bool [count] each; see `FEW`.

    Examples:
        >>> [half.int().tolist() for half in halves(4)]
        [[0, 1, 0, 1], [0, 0, 1, 1]]
        >>> [int(half.sum()) for half in halves(100)]
        [50]
    """
    if count <= FEW:  # Any two indices differ in a bit.
        return [(torch.arange(count) >> bit) % 2 == 1 for bit in range((count - 1).bit_length())]
    half = torch.zeros(count, dtype=torch.bool)
    half[torch.randperm(count, generator=torch.Generator().manual_seed(0))[: count // 2]] = True
    return [half]


def same(one: Tensor, other: Tensor) -> bool:
    """Return True if two tensors have the same shape and the same numbers; NaN equals NaN."""
    return one.shape == other.shape and bool(((one == other) | ((one != one) & (other != other))).all())


def close(found: Tensor, expected: Tensor, tolerance: float | None = None) -> bool:
    """Return True if two tensors have the same shape and the same numbers up to rounding.

    The absolute tolerance is relative to the largest number, since small numbers may be differences of large ones.

    Args:
        found: the tensor to test.
        expected: the expected tensor.
        tolerance: relative tolerance; default: 1e-8 for float64, else 1e-3.
    """
    if tolerance is None:
        tolerance = 1e-8 if expected.dtype == torch.float64 else 1e-3
    if found.shape != expected.shape:
        return False
    finite = expected[expected.isfinite()].abs()
    scale = float(finite.max()) if finite.numel() else 0.0
    return torch.allclose(found, expected, rtol=tolerance, atol=tolerance * (1e-2 + scale), equal_nan=True)


def _some_interact(run: Run, inputs: Tensor, others: Tensor, base: Sequence[Tensor]) -> bool:
    """Replace one half of the samples, then the other; return True if an output of the other samples changes."""
    for half in halves(len(inputs)):
        for replaced in (half, ~half):
            mask = replaced.to(inputs.device).view(-1, *[1] * (inputs.dim() - 1))
            results = run(torch.where(mask, others, inputs))
            kept = torch.nonzero(~replaced).squeeze(1).to(inputs.device)
            before, after = ([t[0].index_select(0, kept), *t[1:]] for t in (base, results))
            if not all(map(same, after, before)):
                again = run(inputs)
                repeatable = all(map(same, again, base))  # Atomic additions on a GPU are not repeatable.
                if repeatable or not all(map(close, after, before)):
                    return True
    return False


def _exaggerated(inputs: Tensor) -> Tensor:
    """Return inputs with larger absolute values than the data's, so that a batch's extremes change, too."""
    signs = torch.ones(len(inputs), dtype=inputs.dtype, device=inputs.device)
    signs[1::4], signs[2::4] = -1, -1  # Each half of `halves` has both signs.
    return signs.view(-1, *[1] * (inputs.dim() - 1)) * (2.5 * inputs.abs() + 0.5)
