"""An attack: adversaries send their updates backwards."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from dfl_lightning.callbacks.outgoing.attack import Attack
from dfl_lightning.round.senders import Senders
from dfl_lightning.utils.errors import UserError


class SignFlip(Attack):
    """The attack by flipped signs: adversaries send their updates with the opposite sign.

        sent = start - scale * update          instead of start + update

    Adversaries train like all clients and keep their own model.

    Args:
        fraction: share of the clients that are adversaries, drawn with the run's seed, rounded to a whole number.
        clients: ids of the adversaries, instead of a fraction. Without both, the adversaries are the clients with
            falsified labels (`data.partition FlippedLabels`).
        scale: how many times as long the flipped update is, above 0.
    """

    supports_clock = True

    def __init__(self, fraction: float | None = None, clients: Sequence[int] | None = None, scale: float = 1.0) -> None:
        super().__init__(fraction, clients)
        if not (scale > 0 and math.isfinite(scale)):
            raise UserError(f"outgoing.scale={scale}; it must be above 0")
        self.scale = scale

    def send(self, updates: Tensor, senders: Senders) -> Tensor:
        """Return the updates times -scale."""
        return -self.scale * updates
