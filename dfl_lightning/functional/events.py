"""Coefficients of asynchronous events, in which clients mix models as they are at that instant.

The events of a wave depend on each other: one changes models that a later one mixes. But each is linear, so every model
is at any instant a sum of the rows at the wave's start and of the wave's updates. The functions below walk through the
events on the coefficients of these sums alone. The models themselves are then mixed once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


def pair_coefficients(clients: Tensor, partners: Tensor, nodes: int) -> tuple[Tensor, Tensor]:
    """Walk through events in which a client and its partner average their models, and the client adds its update.

        x_i, x_j <- (x_i + x_j) / 2;    x_i <- x_i + u_i

    Args:
        clients: the client of each event, in the order of the events, long [e].
        partners: its partner, long [e]; -1: it only adds its update.
        nodes: n, the number of models.

    Returns:
        Coefficients of the models after the last event, float64 [n, n + e], and of the client's model after each event,
        float64 [e, n + e]. Column j < n is the model of j before the events, column n + k the update of event k.

    Examples:
        Client 0 averages with 1; then 1 averages with 2.

        >>> models, after = pair_coefficients(torch.tensor([0, 1]), torch.tensor([1, 2]), nodes=3)
        >>> models
        tensor([[0.5000, 0.5000, 0.0000, 1.0000, 0.0000],
                [0.2500, 0.2500, 0.5000, 0.0000, 1.0000],
                [0.2500, 0.2500, 0.5000, 0.0000, 0.0000]], dtype=torch.float64)
        >>> after[0]
        tensor([0.5000, 0.5000, 0.0000, 1.0000, 0.0000], dtype=torch.float64)
    """
    models = np.eye(nodes, nodes + len(clients))
    after = np.zeros((len(clients), nodes + len(clients)))
    for event, (i, j) in enumerate(zip(clients.tolist(), partners.tolist(), strict=True)):
        own = models[i]
        if j >= 0:
            own += models[j]
            own /= 2
            models[j] = own
        own[nodes + event] += 1
        after[event] = own
    return torch.from_numpy(models), torch.from_numpy(after)


@dataclass(frozen=True)
class BufferedServer:
    """The state of a server that collects what clients send before it changes its model.

    Args:
        version: number of changes of its model so far.
        filled: number of contributions in the buffer.
        mass: sum of the factors of these contributions.
    """

    version: int = 0
    filled: int = 0
    mass: float = 0.0


@dataclass(frozen=True)
class BufferedEvents:
    """Coefficients after the events of a wave: column 0 is the server's model, 1 the buffer, 2 + k contribution k.

    Args:
        model: of the server's model, float64 [2 + e].
        buffer: of the buffer, float64 [2 + e].
        after: of the server's model after each event, float64 [e, 2 + e].
        versions: the version of the server's model after each event, long [e].
        behind: number of versions since each contribution was started, long [e].
        server: the server's state after the last event.
    """

    model: Tensor
    buffer: Tensor
    after: Tensor
    versions: Tensor
    behind: Tensor
    server: BufferedServer


def buffered_coefficients(
    started: Tensor,
    contributes: Tensor,
    server: BufferedServer,
    k: int,
    step: float,
    power: float,
    of_models: bool = False,
) -> BufferedEvents:
    """Walk through events in which a client contributes to a server's buffer, and takes the server's model.

        b <- b + s u_i,    s = (1 + versions behind)^-power;    after k contributions: x <- x + step / k * b,  b <- 0

    If contributions are models, the step goes from the server's model towards them, with M the sum of all s:

        x <- x + step / k * (b - M x)

    Args:
        started: the version of the server's model that each contribution started from, long [e], in the order of the
            events.
        contributes: False for an event in which a client only takes the server's model, bool [e].
        server: the server's state before the events.
        k: contributions per change of the server's model, 1 or more.
        step: length of the server's step.
        power: exponent of the factor s, 0 or more.
        of_models: True if contributions are models instead of updates.

    Examples:
        Two updates to a server that waits for two of them, the second one from the same model.

        >>> two = buffered_coefficients(torch.tensor([0, 0]), torch.tensor([True, True]), BufferedServer(), 2, 1.0, 0.5)
        >>> two.model
        tensor([1.0000, 0.5000, 0.5000, 0.5000], dtype=torch.float64)
        >>> two.versions, two.server
        (tensor([0, 1]), BufferedServer(version=1, filled=0, mass=0.0))
    """
    e, version, filled, mass = len(started), server.version, server.filled, server.mass
    model, buffer = np.eye(2, 2 + e)
    after, versions, behind = np.zeros((e, 2 + e)), [], []
    for event, (first, counts) in enumerate(zip(started.tolist(), contributes.tolist(), strict=True)):
        behind.append(version - first)
        if counts:
            factor = (1 + behind[-1]) ** -power
            buffer[2 + event] += factor
            filled, mass = filled + 1, mass + factor
        if filled == k:
            model = model + step / k * (buffer - mass * model if of_models else buffer)
            buffer, version, filled, mass = np.zeros_like(buffer), version + 1, 0, 0.0
        after[event] = model
        versions.append(version)
    return BufferedEvents(
        model=torch.from_numpy(model),
        buffer=torch.from_numpy(buffer),
        after=torch.from_numpy(after),
        versions=torch.tensor(versions, dtype=torch.long),
        behind=torch.tensor(behind, dtype=torch.long),
        server=BufferedServer(version, filled, mass),
    )
