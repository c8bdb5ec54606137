"""What attacks have in common: who the adversaries are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dfl_lightning.callbacks.base import Outgoing
from dfl_lightning.utils.errors import UserError
from dfl_lightning.utils.random_streams import stream

if TYPE_CHECKING:
    from dfl_lightning.round.federation import Federation


class Attack(Outgoing):
    """Adversaries train as all others do and keep their own model; only what they send is falsified.

    Under one seed, one fraction gives the same adversaries to every attack, so that attacks can be compared. Accuracies
    count adversaries like all others.

    Args:
        fraction: share of the clients that are adversaries, drawn by the run's seed, rounded to a whole number.
        clients: the ids of the adversaries, in place of a fraction. Without either they are those whom the data know:
            the clients with falsified labels (`data.partition FlippedLabels`).

    Raises:
        UserError: both are given, or the fraction is not from 0 to 1.
    """

    def __init__(self, fraction: float | None = None, clients: Sequence[int] | None = None) -> None:
        if fraction is not None and not 0 <= fraction <= 1:
            raise UserError(f"outgoing.fraction={fraction}; it is a share from 0 to 1")
        if fraction is not None and clients is not None:
            raise UserError("outgoing.fraction and outgoing.clients both name the adversaries; keep one")
        self.fraction = fraction
        self.clients = None if clients is None else list(clients)

    def start(self, federation: Federation) -> None:
        """Refuse an attack without adversaries."""
        super().start(federation)
        if not self.who(federation).any():
            raise UserError(
                f"outgoing {type(self).__name__} has no adversaries; name them by --outgoing.fraction or "
                "--outgoing.clients, or use --outgoing null"
            )

    def who(self, federation: Federation) -> Tensor:
        """The adversaries, bool [m]."""
        m = federation.num_clients
        if self.fraction is None and self.clients is None:
            known = federation.data.adversaries
            if known is None:
                raise UserError(
                    f"outgoing {type(self).__name__}: the data know of no adversaries; name them by "
                    "--outgoing.fraction or --outgoing.clients, or use data.partition FlippedLabels"
                )
            return known
        adversaries = torch.zeros(m, dtype=torch.bool)
        if self.clients is not None:
            outside = [client for client in self.clients if not 0 <= client < m]
            if outside:
                raise UserError(f"outgoing.clients names {outside[0]}, but there are {m} clients, 0 to {m - 1}")
            adversaries[self.clients] = True
        elif self.fraction is not None:
            number = math.floor(self.fraction * m + 0.5)
            if self.fraction > 0 and not number:
                raise UserError(f"outgoing.fraction={self.fraction:g} of {m} clients is none; raise it")
            adversaries[torch.randperm(m, generator=stream(federation.seed, "SignFlip adversaries"))[:number]] = True
        return adversaries
