"""Dropout with a memory: who has dropped out tends to be absent for a while."""

from __future__ import annotations

import torch
from torch import Tensor

from dfl_lightning.callbacks.dropout.rates import ClientRates
from dfl_lightning.round.record import Round
from dfl_lightning.utils.errors import UserError
from dfl_lightning.utils.randomness.random_streams import stream


class Markov(ClientRates):
    """Each client is active or dropped out by a chain of its own, with outages of a mean length (an on/off process).

    A client that has dropped out returns with probability 1 / outage; an active one drops out as often as makes it
    absent a share `rate` of the time, which is also the probability of its absence in the first round. An outage of
    1 / (1 - rate) rounds is `Bernoulli`.

    Args:
        rate: share of the time in which a client is absent, 0 to 1: a number for all or a list, one for each client; at
            most outage / (outage + 1), for it is active at least one round between two outages, or 1: never active.
        outage: mean length of an outage in rounds, 1 or more.
        full_first_round: all clients take part in round 0.
    """

    state = ("up", "at")

    def __init__(self, rate: float | list[float] = 0.5, outage: float = 5.0, full_first_round: bool = False) -> None:
        super().__init__(rate, full_first_round)
        if not 1 <= outage < float("inf"):
            raise UserError(f"dropout.outage={outage}; it is a number of rounds, 1 or more")
        most = outage / (outage + 1)
        for share in self.all_rates:
            if most < share < 1:
                raise UserError(
                    f"dropout.rate={share} can't be with outages of {outage:g} rounds, between which a client is "
                    f"active at least once: lower it to {most:.4g} or raise dropout.outage to {share / (1 - share):.4g}"
                )
        self.outage = outage
        self.up: Tensor | None = None  # bool [m], in round `at`
        self.at = -1

    def draw(self, round: Round) -> Tensor:
        """Draw the chains' next state; rounds without a draw (a full first one) are made up for."""
        rates = self.rates(round.num_clients)
        if self.up is None or self.at > round.index:
            self.up, self.at = self._coins(round, 0) >= rates, 0
        while self.at < round.index:
            self.at += 1
            coins = self._coins(round, self.at)
            fails = torch.where(rates < 1, rates / (1 - rates) / self.outage, 1.0)
            recovers = (rates < 1).double() / self.outage
            self.up = torch.where(self.up, coins >= fails, coins < recovers)
        return self.up.clone()

    def _coins(self, round: Round, index: int) -> Tensor:
        """One coin for each client, from its own stream."""
        coins = [
            torch.rand((), dtype=torch.float64, generator=stream(round.federation.seed, "dropout", index, i))
            for i in range(round.num_clients)
        ]
        return torch.stack(coins)
