"""Rates of dropout: one for all clients, or one for each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dfl_lightning.callbacks.base import Dropout
from dfl_lightning.utils.errors import UserError

if TYPE_CHECKING:
    from dfl_lightning.round.federation import Federation


class ClientRates(Dropout):
    """Base class of dropouts with a rate for each client: one for all, or a list.

    Args:
        rate: share of rounds in which a client drops out, 0 to 1; a list has one for each client.
        full_first_round: whether all clients are active in the first round.
    """

    def __init__(self, rate: float | list[float], full_first_round: bool) -> None:
        self.all_rates = [float(share) for share in rate] if isinstance(rate, list) else [float(rate)]
        for share in self.all_rates:
            check_rate(share)
        super().__init__(full_first_round)
        self.rate = rate

    def start(self, federation: Federation) -> None:
        """Require as many rates as there are clients if `rate` is a list."""
        if isinstance(self.rate, list) and len(self.rate) != federation.num_clients:
            raise UserError(
                f"dropout.rate lists {len(self.rate)} rates, but data has {federation.num_clients} clients; "
                "give one a client, or one number for all"
            )

    def rates(self, clients: int) -> Tensor:
        """Return the rate of each client, float64 [m]."""
        return torch.tensor(self.all_rates, dtype=torch.float64).expand(clients)


def check_rate(rate: float) -> None:
    """Raise if a rate is not a share from 0 to 1.

    Raises:
        UserError: the rate is below 0, above 1 or NaN.
    """
    if not 0 <= rate <= 1:
        raise UserError(f"dropout.rate={rate}; it is a share of clients between 0 and 1")
