"""An attack: adversaries send their updates backwards."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from dfl_lightning.callbacks.outgoing.attack import Attack
from dfl_lightning.round.senders import Senders
from dfl_lightning.utils.errors import UserError


class SignFlip(Attack):
    """Adversaries send `start - scale * update` in the place of `start + update`.

    They train as all others do and keep their own model; only what they send is turned around. Accuracies count them
    like all others.

    Args:
        fraction: share of the clients that are adversaries, drawn by the run's seed, rounded to a whole number.
        clients: the ids of the adversaries, in place of a fraction. Without either they are those whom the data know:
            the clients with falsified labels (`data.partition FlippedLabels`).
        scale: how many times as long the flipped update is, above 0.
    """

    def __init__(self, fraction: float | None = None, clients: Sequence[int] | None = None, scale: float = 1.0) -> None:
        super().__init__(fraction, clients)
        if not (scale > 0 and math.isfinite(scale)):
            raise UserError(f"outgoing.scale={scale}; it must be above 0")
        self.scale = scale

    def send(self, updates: Tensor, senders: Senders) -> Tensor:
        """Send updates backwards."""
        return -self.scale * updates
