"""Whether a substitution finds clients of the dropped client's own cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dfl_lightning.callbacks.base import Monitor, Substitution
from dfl_lightning.functional import friend_accuracy
from dfl_lightning.round.record import Round

if TYPE_CHECKING:
    from dfl_lightning.round.federation import Federation


class FriendAccuracy(Monitor):
    """Share of the dropped clients that another client of their own cluster stands in for, as `friend_accuracy`.

    Counted over all receivers and the dropped clients that they selected. Not logged if no clusters are known,
    no such client dropped, or the substitution names no friends (Stale).
    """

    def start(self, federation: Federation) -> None:
        """Log nothing without clusters or a substitution."""
        silent = federation.clusters is None or federation.policy(Substitution) is None
        self.logs = () if silent else ("friend_accuracy",)

    def on_round_end(self, round: Round) -> None:
        """Compare the substitutes with the clusters."""
        if (
            round.clusters is None
            or not round.has("substitute")
            or round.federation.policy(Substitution) is None
            or round.substitute_rows
        ):
            return
        missed = ~round.active[round.selected.senders]
        if missed.any():
            found = friend_accuracy(round.substitute[missed], round.clusters, round.selected.senders[missed])
            round.log("friend_accuracy", found)
