"""Whether an optimizer of unknown kind leaves clients side by side alone: it is tried out before the run."""

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
"""Sizes of two clients' gradients, step by step: large ones that are clipped, none, NaN; then one client is done."""

RATE = 0.1
"""Learning rate of the trial, as a schedule may begin with 0."""

LARGE = 10**5
"""Numbers of a network beyond which only one parameter of each shape and group takes part."""


def try_out(optimizer: ClientOptimizer, network: nn.Module) -> None:
    """Compare two clients side by side with each one alone, in float64, with the network's own shapes.

    Both have gradients of their own; as each must end where it does alone, neither depends on the other's. Optimizers
    of torch that are known to be elementwise need no trial.

    Args:
        optimizer: the user's.
        network: the plain one.

    Raises:
        CannotStack: names the optimizer.
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
                        f"optimizer {optimizer.name} does not update every number by itself, and clients side by side "
                        "would change each other"
                    )


class _Noise:
    """Normal numbers, a stretch of the same ones at another place each time: drawing is what a trial would wait for."""

    def __init__(self, most: int) -> None:
        self._pool = torch.randn(2 * most + 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        self._most, self._calls = most, 0

    def __call__(self, scale: float, shape: torch.Size) -> Tensor:
        self._calls += 1
        first = 7919 * self._calls % (self._most + 1)
        return scale * self._pool[first : first + shape.numel()].view(shape)


def _tried(optimizer: ClientOptimizer, shapes: Sequence[torch.Size]) -> list[int]:
    """Places of the parameters that take part: all, or one of each shape in each group where they are large."""
    places = sorted(chain.from_iterable(optimizer.members))
    if sum(shapes[place].numel() for place in places) <= LARGE:
        return places
    group_of = {place: group for group, members in enumerate(optimizer.members) for place in members}
    return sorted({(shapes[place], group_of[place]): place for place in places}.values())


def _equal(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one, other) or torch.allclose(one, other, rtol=1e-9, atol=1e-12, equal_nan=True)
