"""The baseline of FL-FDMS: the last update of a dropped client is used again."""

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
    """The replacement of a dropped client by its last update (FL-FDMS, arXiv 2205.13222, section 6.1.3).

        model used for j at receiver i = w_i + u_j,    u_j = last update that j sent

    w_i is the receiver's model from before the round. Buffers are not updates: those that j sent last are used as they
    are. A client that has never taken part is replaced by the mean of the active ones. A server has the updates that
    were uploaded to it; between clients each use of a stored update is charged as a model.

    Args:
        stored: `update`, as in the paper and above; `model`: the last model that the client sent is used as it is, as
            in the authors' public code.
    """

    method_name = "Stale"
    state = ("seen",)
    row_sets = {"stale": "zeros"}

    def __init__(self, stored: Literal["update", "model"] = "update") -> None:
        self.stored = stored
        self.seen: Tensor  # clients that have taken part in some round, bool [m]

    def start(self, federation: Federation) -> None:
        """Begin without stored updates."""
        self.seen = torch.zeros(federation.num_clients, dtype=torch.bool)

    def on_trained(self, round: Round) -> None:
        """Store the updates, or models, that the clients of this round have sent."""
        took_part = round.participants
        started = round.jobs.take(torch.nonzero(took_part[round.jobs.owners]).squeeze(1))
        owners, n = started.owners, round.num_nodes
        sent = [(Weights.of_rows(owners, n), "sent")]
        if self.stored == "update":
            sent += [(-term.weights(n), term.rows) for term in started.terms]
        round.mix(sent, into="stale", where=owners)
        self.seen = self.seen | took_part

    def on_substitute(self, round: Round) -> None:
        """Write stored rows as substitutes of dropped clients; -1, the mean, for those that have not sent anything."""
        m, n = round.num_clients, round.num_nodes
        round.substitute_rows.append(SubstituteRows("stale", relative=self.stored == "update"))
        stored = torch.where(self.seen, n + torch.arange(m), -1)
        missing = torch.nonzero(round.selected.senders < m).squeeze(1)
        missing = missing[round.dropped[round.selected.senders[missing]]]
        round.substitute[missing] = stored[round.selected.senders[missing]]
