"""The rival of FL-FDMS: a dropped client's last update is used again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from dfl_lightning.bank import Term
from dfl_lightning.callbacks.families import Substitution
from dfl_lightning.round import Round, Speakers

if TYPE_CHECKING:
    from dfl_lightning.module import DFLModule
    from dfl_lightning.trainer import DFLTrainer


class Stale(Substitution):
    """A dropped client speaks with the last update it made, added to the receiver's present model.

    A client that has never taken part speaks with the mean of the active ones (FL-FDMS section 6.1.3). A server
    has the updates that were uploaded to it; between clients every use of a stored update is charged as a model.
    """

    row_sets = ("stale",)

    def __init__(self) -> None:
        self.seen: Tensor | None = None  # who has ever taken part, bool [m]

    def on_trained(self, trainer: DFLTrainer, module: DFLModule, round: Round) -> None:
        """Remember the updates of those that took part."""
        m = round.num_clients
        took_part = round.participants
        started = round.jobs.take(torch.nonzero(took_part[round.jobs.owners]).squeeze(1))
        owners, n = started.owners, round.num_nodes
        update = [(Term("trained", owners).weights(n), "trained")]
        update += [(-term.weights(n), term.rows) for term in started.terms]
        round.mix(update, into="stale", where=owners)
        before = torch.zeros(m, dtype=torch.bool) if self.seen is None else self.seen
        self.seen = before | took_part

    def on_substitute(self, trainer: DFLTrainer, module: DFLModule, round: Round) -> None:
        """The stored update speaks for a dropped client, the mean of the active ones for one never seen."""
        m, n = round.num_clients, round.num_nodes
        assert self.seen is not None
        assert round.stand_in is not None
        round.speakers.append(Speakers("stale", relative=True))
        stored = torch.where(self.seen, n + torch.arange(m), -1)
        round.stand_in[:, :m] = torch.where(round.dropped, stored, torch.arange(m))

    def state_dict(self) -> dict[str, Any]:
        """Who has ever taken part."""
        return {"seen": self.seen}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.seen = state_dict["seen"]
