"""An attack: adversaries send noise."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from dfl_lightning.callbacks.outgoing.attack import Attack
from dfl_lightning.round.senders import Senders
from dfl_lightning.utils.errors import UserError


class NoiseAttack(Attack):
    """Adversaries send `start + sigma * noise` in the place of `start + update`, with standard normal noise.

    They train as all others do and keep their own model; only what they send is noise, which counts as many bytes as
    an honest client's message. Accuracies count them like all others.

    Args:
        fraction: share of the clients that are adversaries, drawn by the run's seed, rounded to a whole number.
        clients: the ids of the adversaries, in place of a fraction. Without either they are those whom the data know:
            the clients with falsified labels (`data.partition FlippedLabels`).
        sigma: standard deviation of each entry of the noise, in units of parameters, above 0.
    """

    def __init__(self, fraction: float | None = None, clients: Sequence[int] | None = None, sigma: float = 1.0) -> None:
        super().__init__(fraction, clients)
        if not (sigma > 0 and math.isfinite(sigma)):
            raise UserError(f"outgoing.sigma={sigma}; it is a standard deviation above 0")
        self.sigma = sigma

    def send(self, updates: Tensor, senders: Senders) -> Tensor:
        """Send noise alone."""
        return self.sigma * senders.normal(updates.shape)
