"""The baseline of FL-FDMS: a dropped client's last update is used again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from dfl_lightning.bank.references import Weights
from dfl_lightning.callbacks.base import Substitution
from dfl_lightning.round.record import Round, SubstituteRows

if TYPE_CHECKING:
    from dfl_lightning.round.federation import Federation


class Stale(Substitution):
    """A dropped client is replaced by the last update it sent, added to the receiver's present model.

    Of buffers, which are no updates, those that it sent last stand in as they are. A client that has never taken part
    is replaced by the mean of the active ones (FL-FDMS section 6.1.3). A server has the updates that were uploaded to
    it; between clients every use of a stored update is charged as a model.

    Args:
        stored: `update`, the paper's words, or `model`: the last model that the client sent stands in as it is, which
            is what the authors' public code averages.
    """

    method_name = "Stale"
    state = ("seen",)
    row_sets = {"stale": "zeros"}

    def __init__(self, stored: Literal["update", "model"] = "update") -> None:
        self.stored = stored
        self.seen: Tensor  # who has ever taken part, bool [m]

    def start(self, federation: Federation) -> None:
        """Begin with no client that has taken part."""
        self.seen = torch.zeros(federation.num_clients, dtype=torch.bool)

    def on_trained(self, round: Round) -> None:
        """Store what the clients that took part have sent."""
        took_part = round.participants
        started = round.jobs.take(torch.nonzero(took_part[round.jobs.owners]).squeeze(1))
        owners, n = started.owners, round.num_nodes
        sent = [(Weights.of_rows(owners, n), "sent")]
        if self.stored == "update":
            sent += [(-term.weights(n), term.rows) for term in started.terms]
        round.mix(sent, into="stale", where=owners)
        self.seen = self.seen | took_part

    def on_substitute(self, round: Round) -> None:
        """Replace a dropped client by what it sent last; one that never sent, by the mean of the active ones."""
        m, n = round.num_clients, round.num_nodes
        round.substitute_rows.append(SubstituteRows("stale", relative=self.stored == "update"))
        stored = torch.where(self.seen, n + torch.arange(m), -1)
        missing = torch.nonzero(round.selected.senders < m).squeeze(1)
        missing = missing[round.dropped[round.selected.senders[missing]]]
        round.substitute[missing] = stored[round.selected.senders[missing]]
