"""Dropout drawn at random: independently, in exact numbers, or with a survivor in every group."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dfl_lightning.callbacks.base import Dropout
from dfl_lightning.callbacks.dropout.rates import ClientRates, check_rate
from dfl_lightning.round.record import Round
from dfl_lightning.utils.errors import UserError

if TYPE_CHECKING:
    from dfl_lightning.round.federation import Federation


class _RateDropout(Dropout):
    def __init__(self, rate: float = 0.5, full_first_round: bool = False) -> None:
        check_rate(rate)
        super().__init__(full_first_round)
        self.rate = rate


class Bernoulli(ClientRates):
    """Independent dropout of each client in each round.

        P(client i drops out) = rate_i

    Args:
        rate: probability of dropping out, 0 to 1: a number for all or a list with one for each client.
        full_first_round: whether all clients take part in round 0.
    """

    supports_clock = True

    def __init__(self, rate: float | list[float] = 0.5, full_first_round: bool = False) -> None:
        super().__init__(rate, full_first_round)

    def draw(self, round: Round) -> Tensor:
        """Draw one coin for each client, from its own stream."""
        coins = [torch.rand((), generator=round.client_generator("dropout", i)) for i in range(round.num_clients)]
        return torch.stack(coins) >= self.rates(round.num_clients)


class ExactCount(_RateDropout):
    """Dropout of exactly round(rate * m) uniformly drawn clients in each round.

    Args:
        rate: share of clients that drop out, 0 to 1.
        full_first_round: whether all clients take part in round 0.
    """

    against_clock = "it draws a number of clients of a round"

    def draw(self, round: Round) -> Tensor:
        """Draw a random order of the clients; the first ones drop out."""
        m = round.num_clients
        order = torch.randperm(m, generator=round.generator("dropout"))
        active = torch.ones(m, dtype=torch.bool)
        active[order[: _count(self.rate, m)]] = False
        return active


class GroupedCount(_RateDropout):
    """Dropout of exactly round(rate * m) clients that leaves one active in each group (FL-FDMS, assumption 5).

    Groups are the clusters known from the data or the topology (arXiv 2205.13222).

    Args:
        rate: share of clients that drop out, 0 to 1; it must leave one client active in each group.
        full_first_round: whether all clients take part in round 0.
    """

    against_clock = "it draws a number of clients of a round"

    def start(self, federation: Federation) -> None:
        """Require known groups, and a rate that leaves at least one client of each active."""
        if federation.clusters is None:
            raise UserError(
                "dropout GroupedCount needs groups: a clustered data.partition or 'cluster' attributes in the topology"
            )
        groups, m = len(federation.clusters.unique()), federation.num_clients
        if m - _count(self.rate, m) < groups:
            raise UserError(
                f"dropout.rate={self.rate} leaves {m - _count(self.rate, m)} of {m} clients active, "
                f"fewer than the {groups} groups that each keep one; lower dropout.rate"
            )

    def draw(self, round: Round) -> Tensor:
        """Draw one active client of each group, and the other active clients uniformly from the rest."""
        m, clusters = round.num_clients, round.clusters
        assert clusters is not None
        draws = torch.rand(m, generator=round.generator("dropout"))
        survivors = [
            int(ids[draws[ids].argmin()])
            for ids in (torch.nonzero(clusters == c).squeeze(1) for c in clusters.unique())
        ]
        draws[survivors] = -1.0
        active = torch.zeros(m, dtype=torch.bool)
        active[draws.argsort(stable=True)[: m - _count(self.rate, m)]] = True
        return active


def _count(rate: float, clients: int) -> int:
    return int(rate * clients + 0.5)
