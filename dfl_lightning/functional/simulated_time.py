"""The time of a round's messages on devices with given connections."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["transfer_seconds"]


def transfer_seconds(
    receivers: Tensor,
    senders: Tensor,
    messages: Tensor,
    size: Tensor,
    up: Tensor,
    down: Tensor,
    latency: Tensor,
) -> Tensor:
    """Compute the seconds that each client spends on receiving its messages one after the other.

    A link takes size / min(up of the sender, down of the receiver) + messages * max(both latencies). Nodes after the m
    clients are servers without limits; the time of what they receive is added to the client that sends it.

    Args:
        receivers: receiver of each link that was used, long [e].
        senders: sender of each link, long [e].
        messages: number of messages over each link, [e]; each waits for the latency.
        size: bytes over each link, [e].
        up: bytes per second that each client can send, float64 [m].
        down: bytes per second that each client can receive, float64 [m].
        latency: seconds that a message waits at each client, float64 [m].

    Returns:
        Seconds of each client, float64 [m].

    Examples:
        >>> up, down = torch.tensor([10.0, 20.0]).double(), torch.tensor([40.0, 5.0]).double()
        >>> one, latency = torch.tensor([1]), torch.tensor([0.5, 0.25]).double()
        >>> transfer_seconds(torch.tensor([0]), torch.tensor([1]), one, 100 * one, up, down, latency)
        tensor([5.5000, 0.0000], dtype=torch.float64)
    """
    m = len(up)
    i, j, of_receiver = receivers.clamp(max=m - 1), senders.clamp(max=m - 1), receivers < m
    seconds = link_seconds(receivers, senders, messages, size, up, down, latency)
    return torch.zeros(m, dtype=torch.float64).index_add_(0, i.where(of_receiver, j), seconds)


def link_seconds(
    receivers: Tensor,
    senders: Tensor,
    messages: Tensor,
    size: Tensor,
    up: Tensor,
    down: Tensor,
    latency: Tensor,
) -> Tensor:
    """Compute the seconds in which the messages of each link arrive, float64 [e].

    The time of a link is that in `transfer_seconds`.

    Args:
        receivers: receiver of each link that was used, long [e].
        senders: sender of each link, long [e].
        messages: number of messages over each link, [e]; each waits for the latency.
        size: bytes over each link, [e].
        up: bytes per second that each client can send, float64 [m].
        down: bytes per second that each client can receive, float64 [m].
        latency: seconds that a message waits at each client, float64 [m].

    Examples:
        >>> up, down = torch.tensor([10.0, 20.0]).double(), torch.tensor([40.0, 5.0]).double()
        >>> one, latency = torch.tensor([1, 1]), torch.tensor([0.5, 0.25]).double()
        >>> link_seconds(torch.tensor([0, 1]), torch.tensor([1, 0]), one, 100 * one, up, down, latency)
        tensor([ 5.5000, 20.5000], dtype=torch.float64)
    """
    m = len(up)
    of_sender, of_receiver = senders < m, receivers < m
    j, i = senders.clamp(max=m - 1), receivers.clamp(max=m - 1)
    rate = torch.minimum(up[j].where(of_sender, torch.inf), down[i].where(of_receiver, torch.inf))
    late = torch.maximum(latency[j].where(of_sender, 0.0), latency[i].where(of_receiver, 0.0))
    return size / rate + messages * late
