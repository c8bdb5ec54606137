"""An attack: adversaries send noise."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from dfl_lightning.callbacks.outgoing.attack import Attack
from dfl_lightning.round.senders import Senders
from dfl_lightning.utils.errors import UserError


class NoiseAttack(Attack):
    """The attack by noise: adversaries send noise instead of their updates.

        sent = start + sigma N(0, I)          instead of start + update

    Adversaries train like all clients and keep their own model. Their messages have as many bytes as honest ones.

    Args:
        fraction: share of the clients that are adversaries, drawn with the run's seed, rounded to a whole number.
        clients: ids of the adversaries, instead of a fraction. Without both, the adversaries are the clients with
            falsified labels (`data.partition FlippedLabels`).
        sigma: standard deviation of each entry of the noise, in units of parameters, above 0.
    """

    supports_clock = True

    def __init__(self, fraction: float | None = None, clients: Sequence[int] | None = None, sigma: float = 1.0) -> None:
        super().__init__(fraction, clients)
        if not (sigma > 0 and math.isfinite(sigma)):
            raise UserError(f"outgoing.sigma={sigma}; it is a standard deviation above 0")
        self.sigma = sigma

    def send(self, updates: Tensor, senders: Senders) -> Tensor:
        """Return noise as updates."""
        return self.sigma * senders.normal(updates.shape)
