"""Do the samples of a batch meet in a network? Found by changing some of them and looking at the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from dfl_lightning.utils.errors import is_out_of_memory

Run = Callable[[Tensor], Sequence[Tensor]]
"""Inputs [B, ...] -> outputs [B, ...], then the buffers as the pass leaves them; from the same state in each call."""

FEW = 8
"""Up to so many samples every pair is told apart; of more, two random halves: code that couples couples many pairs."""


def samples_interact(run_on: Callable[[torch.device], Run], inputs: Tensor) -> bool:
    """Whether an output changes where other samples' inputs do, or a buffer where any do, by as little as one bit.

    Batches of one shape go through the same arithmetic, so that whatever changes has seen another sample. Inputs beyond
    the range of the data are tried on the CPU only: a lookup that they lead astray is an error like any other there,
    but the end of all work on a GPU.

    Args:
        run_on: a device -> the network there.
        inputs: [B, ...], different ones as far as possible.
    """
    run, others = run_on(inputs.device), inputs.roll(1, 0)
    base = run(inputs)
    whole = (inputs == inputs.round()).all(0)  # words and codes: nothing but inputs of the data can be looked up
    on_cpu = inputs.device.type == "cpu"
    if bool(whole.all()):
        return _meet(run, inputs, others, base)
    if not on_cpu and _meet(run, inputs, others, base):
        return True
    try:
        if on_cpu:
            return _meet(run, inputs, others.where(whole, _exaggerated(others)), base)
        return samples_interact(run_on, inputs.cpu())
    except Exception as error:  # it takes the data's range only, or a GPU: then with inputs of the data
        if is_out_of_memory(error):
            raise  # which says nothing about the network
        return on_cpu and _meet(run, inputs, others, base)


def place_matters(run: Run, inputs: Tensor) -> bool:
    """Whether outputs depend on a sample's place in its batch or on the size of the batch, beyond rounding.

    Args:
        run: the network.
        inputs: [B, ...], two or more.
    """
    base = run(inputs)[0]
    order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(1))
    cut = len(order) // 3 + 1
    pieces = [run(inputs.index_select(0, part.to(inputs.device)))[0] for part in (order[:cut], order[cut:])]
    return not close(torch.cat(pieces), base.index_select(0, order.to(base.device)))


def halves(count: int) -> list[Tensor]:
    """Ways to cut `count` samples in two, bool [count] each.

    Examples:
        >>> [half.int().tolist() for half in halves(4)]
        [[0, 1, 0, 1], [0, 0, 1, 1]]
        >>> [int(half.sum()) for half in halves(100)]
        [50]
    """
    if count <= FEW:  # two numbers differ in a bit
        return [(torch.arange(count) >> bit) % 2 == 1 for bit in range((count - 1).bit_length())]
    half = torch.zeros(count, dtype=torch.bool)
    half[torch.randperm(count, generator=torch.Generator().manual_seed(0))[: count // 2]] = True
    return [half]


def same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors hold the same numbers; NaN equals NaN.

    Args:
        one: a tensor.
        other: another one, of any shape.
    """
    return one.shape == other.shape and bool(((one == other) | ((one != one) & (other != other))).all())


def close(found: Tensor, expected: Tensor, tolerance: float | None = None) -> bool:
    """Whether two tensors hold the same numbers up to rounding, which may be cancelled down from their largest one.

    Args:
        found: any shape.
        expected: of the same shape.
        tolerance: relative; default: what rounding comes to in the type of `expected`.
    """
    if tolerance is None:
        tolerance = 1e-8 if expected.dtype == torch.float64 else 1e-3
    if found.shape != expected.shape:
        return False
    finite = expected[expected.isfinite()].abs()
    scale = float(finite.max()) if finite.numel() else 0.0
    return torch.allclose(found, expected, rtol=tolerance, atol=tolerance * (1e-2 + scale), equal_nan=True)


def _meet(run: Run, inputs: Tensor, others: Tensor, base: Sequence[Tensor]) -> bool:
    """Whether some output changes where some samples were replaced: one half of them, then the other."""
    for half in halves(len(inputs)):
        for replaced in (half, ~half):
            mask = replaced.to(inputs.device).view(-1, *[1] * (inputs.dim() - 1))
            found = run(torch.where(mask, others, inputs))
            kept = torch.nonzero(~replaced).squeeze(1).to(inputs.device)
            before, after = ([t[0].index_select(0, kept), *t[1:]] for t in (base, found))
            if not all(map(same, after, before)):
                again = run(inputs)
                repeatable = all(map(same, again, base))  # atomic additions on a GPU are not
                if repeatable or not all(map(close, after, before)):
                    return True
    return False


def _exaggerated(inputs: Tensor) -> Tensor:
    """Inputs that are larger, and smaller, than any of the data: extremes of a batch move, too."""
    signs = torch.ones(len(inputs), dtype=inputs.dtype, device=inputs.device)
    signs[1::4], signs[2::4] = -1, -1  # both signs in each half of bits
    return signs.view(-1, *[1] * (inputs.dim() - 1)) * (2.5 * inputs.abs() + 0.5)
