"""Dropout with a memory: a client that has dropped out tends to be absent for several rounds."""

from __future__ import annotations

import torch
from torch import Tensor

from dfl_lightning.callbacks.dropout.rates import ClientRates
from dfl_lightning.round.record import Round
from dfl_lightning.utils.errors import UserError
from dfl_lightning.utils.randomness.random_streams import stream


class Markov(ClientRates):
    """A Markov chain for each client, active or dropped out, with outages of a given mean length (an on/off process).

        P(active -> dropped out) = rate / (1 - rate) / outage,    P(dropped out -> active) = 1 / outage

    A client is thus absent in a share `rate` of the rounds, which is also the probability of its absence in the first
    round. With outages of 1 / (1 - rate) rounds the chain is `Bernoulli`.

    Args:
        rate: share of the rounds in which a client is absent: a number for all or a list with one for each client. It
            is at most outage / (outage + 1), since a client is active for at least one round between two outages, or 1:
            never active.
        outage: mean length of an outage in rounds, 1 or more.
        full_first_round: whether all clients take part in round 0.
    """

    state = ("up", "at")
    against_clock = "outages are counted in rounds"

    def __init__(self, rate: float | list[float] = 0.5, outage: float = 5.0, full_first_round: bool = False) -> None:
        super().__init__(rate, full_first_round)
        if not 1 <= outage < float("inf"):
            raise UserError(f"dropout.outage={outage}; it is a number of rounds, 1 or more")
        most = outage / (outage + 1)
        for share in self.all_rates:
            if most < share < 1:
                raise UserError(
                    f"dropout.rate={share} is too high for outages of {outage:g} rounds, since a client is active at "
                    f"least once between two outages: lower it to {most:.4g} or raise dropout.outage to "
                    f"{share / (1 - share):.4g}"
                )
        self.outage = outage
        self.up: Tensor | None = None  # bool [m], in round `at`
        self.at = -1

    def draw(self, round: Round) -> Tensor:
        """Draw the next state of each chain, also for rounds without a draw before it, such as a full first one."""
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
        """Draw a uniform number for each client from its own stream, float64 [m]."""
        coins = [
            torch.rand((), dtype=torch.float64, generator=stream(round.federation.seed, "dropout", index, i))
            for i in range(round.num_clients)
        ]
        return torch.stack(coins)
