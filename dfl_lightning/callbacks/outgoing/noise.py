"""Noise: clients send clipped updates with normal noise."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from torch import Tensor

from dfl_lightning.callbacks.base import Outgoing
from dfl_lightning.functional import clipped
from dfl_lightning.round.ledger import BYTES
from dfl_lightning.round.senders import Senders
from dfl_lightning.utils.errors import UserError

if TYPE_CHECKING:
    from dfl_lightning.round.federation import Federation


class GaussianNoise(Outgoing):
    """Clipped updates with Gaussian noise, as in DP-FedAvg (McMahan et al. 2018, arXiv 1710.06963).

        sent = u min(1, clip / ||u||) + sigma clip N(0, I)

    Each client adds the noise to its own update u. The privacy that this gives is not computed here. Without a server,
    clients average their own model as it is, and their later updates start from the average.

    Args:
        clip: greatest length of an update before the noise, above 0.
        sigma: standard deviation of the noise in units of `clip`, 0 or more.
    """

    supports_clock = True

    def __init__(self, clip: float = 1.0, sigma: float = 1.0) -> None:
        if not (clip > 0 and math.isfinite(clip)):
            raise UserError(f"outgoing.clip={clip}; it is a length above 0")
        if not (sigma >= 0 and math.isfinite(sigma)):
            raise UserError(f"outgoing.sigma={sigma}; it is a standard deviation, 0 or more")
        self.clip, self.sigma = clip, sigma

    def start(self, federation: Federation) -> None:
        """Remark on buffers, which clients send as they are."""
        super().start(federation)
        layout = federation.layout
        buffers = [entry.name for entry in layout.entries if entry.is_buffer and layout.is_shared(entry)]
        if buffers:
            federation.remark(
                f"GaussianNoise clips and hides parameters only: buffers ('{buffers[0]}'"
                f"{', …' if len(buffers) > 1 else ''}) are sent as they are; name what is shared by model.shared to "
                "keep them at home"
            )

    def send(self, updates: Tensor, senders: Senders) -> Tensor:
        """Shorten updates to length `clip`, then add noise of standard deviation sigma * clip."""
        updates = clipped(updates, self.clip)
        return updates + self.sigma * self.clip * senders.normal(updates.shape) if self.sigma else updates

    def bytes_of(self, width: int) -> int | None:
        """Count all entries, which noise makes different from 0; return None without noise."""
        return BYTES * width if self.sigma else None
