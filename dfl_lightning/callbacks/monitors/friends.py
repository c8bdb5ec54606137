"""Did a substitution find clients of the dropped one's own cluster?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from dfl_lightning.callbacks.families import Monitor, Substitution
from dfl_lightning.functional import friend_accuracy
from dfl_lightning.round import Round

if TYPE_CHECKING:
    from dfl_lightning.module import DFLModule
    from dfl_lightning.trainer import DFLTrainer


class FriendAccuracy(Monitor):
    """Share of the dropped clients that another client of their own cluster stands in for, as `friend_accuracy`.

    Silent where no clusters are known, nobody dropped, or the substitution names no friends (Stale).
    """

    def on_round_end(self, trainer: DFLTrainer, module: DFLModule, round: Round) -> None:
        """Compare the stand-ins towards the first receiver that has any with the clusters."""
        m = round.num_clients
        if round.clusters is None or round.stand_in is None or trainer.policy(Substitution) is None or round.speakers:
            return
        if not round.dropped.any() or not round.receivers.any():
            return
        receiver = int(torch.nonzero(round.receivers)[0])
        round.log("friend_accuracy", friend_accuracy(round.stand_in[receiver, :m], round.clusters, round.dropped))
