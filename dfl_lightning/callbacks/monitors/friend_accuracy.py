"""The share of substitutes from the cluster of the client that dropped out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dfl_lightning.callbacks.base import Monitor, Substitution
from dfl_lightning.functional import friend_accuracy
from dfl_lightning.round.record import Round

if TYPE_CHECKING:
    from dfl_lightning.round.federation import Federation


class FriendAccuracy(Monitor):
    """Share of the dropped clients that a client of their own cluster replaces, as `friend_accuracy`.

    The share is over all pairs of a receiver and a client that it selected and that has dropped out. It is not logged
    without known clusters, in rounds without such a pair, or with a substitution that does not name friends (`Stale`).
    """

    def start(self, federation: Federation) -> None:
        """Declare the column; none without clusters or a substitution."""
        silent = federation.clusters is None or federation.policy(Substitution) is None
        self.logs = () if silent else ("friend_accuracy",)

    def on_round_end(self, round: Round) -> None:
        """Log the share of substitutes in the right cluster."""
        if (
            round.clusters is None
            or not round.has("substitute")
            or round.federation.policy(Substitution) is None
            or round.substitute_rows
        ):
            return
        missed = ~round.active[round.selected.senders]
        if missed.any():
            accuracy = friend_accuracy(round.substitute[missed], round.clusters, round.selected.senders[missed])
            round.log("friend_accuracy", accuracy)
