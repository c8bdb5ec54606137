"""Precision and recall of the selected neighbours against known clusters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dfl_lightning.callbacks.base import Monitor
from dfl_lightning.functional import neighbour_precision_recall
from dfl_lightning.round.record import Round

if TYPE_CHECKING:
    from dfl_lightning.round.federation import Federation


class NeighbourAccuracy(Monitor):
    """Precision and recall of the selected neighbours against known clusters; not logged without known clusters.

    Logs `neighbour_precision` (share of the selected neighbours that are in the receiver's cluster) and
    `neighbour_recall` (share of the available members of its cluster that were selected), as means over receivers.
    """

    def start(self, federation: Federation) -> None:
        """Declare the columns; none without clusters, and none with servers."""
        silent = federation.clusters is None or federation.num_servers
        self.logs = () if silent else ("neighbour_precision", "neighbour_recall")

    def on_round_end(self, round: Round) -> None:
        """Log precision and recall of the selected neighbours."""
        if round.clusters is None or not round.has("selected") or round.num_servers:
            return
        precision, recall = neighbour_precision_recall(round.selected, round.clusters, round.available)
        round.log("neighbour_precision", precision)
        round.log("neighbour_recall", recall)
