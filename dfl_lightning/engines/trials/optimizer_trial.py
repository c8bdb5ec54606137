"""Trial before the run of an optimizer of unknown kind: are stacked clients updated independently?"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import chain

import torch
from torch import Tensor, nn

from dfl_lightning.engines.optimizing.optimizers import ClientOptimizer
from dfl_lightning.engines.stacked.cannot_stack import CannotStack
from dfl_lightning.engines.stacked.optimizer import PrefixOptimizer
from dfl_lightning.engines.stacked.parameters import staged
from dfl_lightning.utils.errors import reason, reported_as

SCALES = [(1.0, 30.0), (0.1, 0.0), (3.0, 1e6), (1.0, torch.nan), (1e4,), (1.0,)]
"""Scales of two clients' gradients in each step: large ones, zero, NaN; in the last steps one client is left."""

RATE = 0.1
"""Learning rate of the trial; not the run's own, since a schedule may begin with 0."""

LARGE = 10**5
"""Size of a network, in numbers, above which the trial uses only one parameter of each shape in each group."""


def try_out(optimizer: ClientOptimizer, network: nn.Module) -> None:
    """Compare the updates of two stacked clients with those of each client alone, in float64.

    The clients have different gradients. If each ends where it does alone, neither depends on the other's gradient.
    Optimizers of torch that are known to be elementwise need no trial.

    Args:
        optimizer: the user's optimizer.
        network: the network for one client, with the shapes of the parameters.

    Raises:
        CannotStack: the optimizer fails on stacked clients, or updates them otherwise; the message names it.
    """
    if optimizer.elementwise:
        return
    shapes = [p.shape for p in network.parameters()]
    places = _tried(optimizer, shapes)
    draw = _Noise(max(shapes[place].numel() for place in places))
    start = [torch.stack([draw(1.0, shapes[place]), draw(10.0, shapes[place])]) for place in places]
    rates = tuple({"lr": RATE} for _ in optimizer.groups)
    together = [staged(tensor) for tensor in start]
    alone = [[nn.Parameter(tensor[client].clone()) for tensor in start] for client in range(2)]
    fails = f"optimizer {optimizer.name} fails on several clients at once"
    with reported_as(lambda error: CannotStack(f"{fails} ({reason(error)})")):
        stacked = PrefixOptimizer(partial(optimizer.make, places=places, hyperparameters=rates))
        own = [optimizer.make(parameters, places, rates) for parameters in alone]
        for scales in SCALES:
            clients = len(scales)
            grads = [[draw(scale, shapes[place]) for place in places] for scale in scales]
            side_by_side = [staged(torch.stack(several)) for several in zip(*grads, strict=True)]
            stacked.step([tensor[:clients] for tensor in together], side_by_side)
            for client in range(clients):
                for parameter, grad in zip(alone[client], grads[client], strict=True):
                    parameter.grad = grad
                own[client].step()
                pairs = zip(together, alone[client], strict=True)
                if not all(_equal(tensor[client], parameter.detach()) for tensor, parameter in pairs):
                    raise CannotStack(
                        f"optimizer {optimizer.name} is not elementwise, so stacked clients would affect each other"
                    )


class _Noise:
    """Source of normal numbers that returns another slice of one pool in each call, since drawing would be slow."""

    def __init__(self, most: int) -> None:
        self._pool = torch.randn(2 * most + 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        self._most, self._calls = most, 0

    def __call__(self, scale: float, shape: torch.Size) -> Tensor:
        self._calls += 1
        first = 7919 * self._calls % (self._most + 1)
        return scale * self._pool[first : first + shape.numel()].view(shape)


def _tried(optimizer: ClientOptimizer, shapes: Sequence[torch.Size]) -> list[int]:
    """Return the indices of the parameters in the trial: all, or one of each shape in each group; see `LARGE`."""
    places = sorted(chain.from_iterable(optimizer.members))
    if sum(shapes[place].numel() for place in places) <= LARGE:
        return places
    group_of = {place: group for group, members in enumerate(optimizer.members) for place in members}
    return sorted({(shapes[place], group_of[place]): place for place in places}.values())


def _equal(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one, other) or torch.allclose(one, other, rtol=1e-9, atol=1e-12, equal_nan=True)
