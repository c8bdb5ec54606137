"""Asynchronous rounds: the clients that may train together, and the span of a round.

A client trains from its own model, mixes it with models that others have published, and starts again. Clients that
finish before any client could finish twice form a *wave*: each of them starts from a model that is known when the wave
begins, and none reads what another one mixes in the wave. So a wave is trained in one call and mixed in one step, with
the result of one client after the other in the order of time.
"""

from __future__ import annotations

import torch
from torch import Tensor

NANOSECONDS = 1_000_000_000
"""In a second: simulated time is in whole nanoseconds, so that equal instants are equal on every machine."""


def to_nanoseconds(seconds: Tensor) -> Tensor:
    """Round seconds to whole nanoseconds, long, in the same shape.

    Args:
        seconds: float64, finite.

    Examples:
        >>> to_nanoseconds(torch.tensor([0.5, 1e-10]).double())
        tensor([500000000,         0])
    """
    return (seconds * NANOSECONDS).round().long()


def next_wave(finish: Tensor, cost: Tensor, end: int) -> Tensor:
    """Return the clients of the next wave of a round, bool [m]; none if no client finishes within the round.

    A client belongs to it if it finishes before the horizon, the first instant at which a client could finish once
    more, min over i of finish_i + cost_i, and not after the end of the round.

    Args:
        finish: instant at which each client's present training ends, in nanoseconds, long [m].
        cost: duration of each client's next training, in nanoseconds, long [m], 1 or more.
        end: instant at which the round ends, in nanoseconds.

    Examples:
        Clients that take 1, 2 and 4 seconds: the first one finishes once more before the third finishes at all.

        >>> cost = 1_000_000_000 * torch.tensor([1, 2, 4])
        >>> next_wave(cost, cost, end=4_000_000_000)
        tensor([ True, False, False])
        >>> next_wave(cost + torch.tensor([1_000_000_000, 0, 0]), cost, end=4_000_000_000)
        tensor([ True,  True, False])
    """
    horizon = int((finish + cost).min())
    return (finish < horizon) & (finish <= end)


def versions_kept(travel: Tensor, cost: Tensor) -> Tensor:
    """Return how many models of each client must be kept if clients push, long [m]: 1 + ceil(travel / cost).

    These are the ones that have not reached all receivers, and the last one that has.

    Args:
        travel: longest time in which a client's message reaches a receiver, in nanoseconds, long [m].
        cost: duration of each client's training, after which it sends the next model, in nanoseconds, long [m], 1 or
            more.

    Examples:
        >>> versions_kept(torch.tensor([0, 5, 10, 11]), torch.tensor([10, 10, 10, 10]))
        tensor([1, 2, 2, 3])
    """
    return 1 - torch.div(-travel, cost, rounding_mode="floor")


def staleness_factors(ages: Tensor, power: float) -> Tensor:
    """Return (1 + age)^-power, the polynomial factor of FedAsync (arXiv 1903.03934), in the same shape.

    Args:
        ages: ages of models in any unit, float64, 0 or more.
        power: exponent, 0 or more.

    Examples:
        >>> staleness_factors(torch.tensor([0.0, 3.0]).double(), power=0.5)
        tensor([1.0000, 0.5000], dtype=torch.float64)
    """
    return (1 + ages) ** -power


def round_span(cost: Tensor) -> int:
    """Return the harmonic mean of the durations of trainings, in nanoseconds, rounded up.

    In a span of this length a client trains once on average, as in a synchronous round.

    Args:
        cost: duration of each client's training, in nanoseconds, long [m], 1 or more.

    Examples:
        >>> round_span(torch.tensor([6, 6, 6])), round_span(torch.tensor([1, 2, 4]))
        (6, 2)
    """
    total = float(torch.reciprocal(cost.double()).sum())
    span = len(cost) / total
    return round(span) if abs(span - round(span)) < 1e-6 * span else int(-(-span // 1))
