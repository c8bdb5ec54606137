"""FL-FDMS: friends stand in for clients that drop out (arXiv 2205.13222)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from dfl_lightning.callbacks.families import Substitution
from dfl_lightning.errors import UserError
from dfl_lightning.functional import friends, running_mean, similarity_scores
from dfl_lightning.round import Round

if TYPE_CHECKING:
    from dfl_lightning.module import DFLModule
    from dfl_lightning.trainer import DFLTrainer


class FDMS(Substitution):
    """A dropped client's update is replaced by that of its best friend among the active ones (FL-FDMS section 5.1).

    The server keeps, for each pair of clients, the running mean of how similar their updates were in the rounds in
    which both took part. A client with no such history speaks with the mean of the active ones.
    """

    def __init__(self) -> None:
        self.scores: Tensor | None = None  # R, float64 [m, m]
        self.counts: Tensor | None = None  # rounds observed together, long [m, m]

    def check(self, trainer: DFLTrainer, module: DFLModule) -> None:
        """Friends are known to a server."""
        if not module.topology.num_servers:
            raise UserError("substitution FDMS keeps its scores at a server; use --topology server")

    def on_trained(self, trainer: DFLTrainer, module: DFLModule, round: Round) -> None:
        """Update the running means with this round's pairs of updates."""
        m = round.num_clients
        if self.scores is None or self.counts is None:
            self.scores = torch.zeros(m, m, dtype=torch.float64)
            self.counts = torch.zeros(m, m, dtype=torch.long)
        took_part = round.participants
        pairs = took_part[:, None] & took_part[None, :]
        pairs.fill_diagonal_(False)
        cosines = round.compare("trained", round.between_clients(pairs, False), relative_to="start").cosines[:m, :m]
        self.scores, self.counts = running_mean(self.scores, self.counts, similarity_scores(cosines))

    def on_substitute(self, trainer: DFLTrainer, module: DFLModule, round: Round) -> None:
        """Friends speak for the dropped ones, towards every receiver alike."""
        m = round.num_clients
        assert self.scores is not None
        assert self.counts is not None
        assert round.stand_in is not None
        found = friends(self.scores, self.counts, round.participants)
        round.stand_in[:, :m] = torch.where(round.dropped, found, torch.arange(m))

    def state_dict(self) -> dict[str, Any]:
        """Scores and counts of pairs."""
        return {"scores": self.scores, "counts": self.counts}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.scores, self.counts = state_dict["scores"], state_dict["counts"]
