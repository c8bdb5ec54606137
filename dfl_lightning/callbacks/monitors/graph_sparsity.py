"""How many of the possible links does a round use?"""

from __future__ import annotations

from dfl_lightning.callbacks.base import Monitor
from dfl_lightning.round.record import Round


class GraphSparsity(Monitor):
    """Share of the possible links over which something was received, and how many of these are used both ways.

    Logs `link_density`: used links / links of the round's topology, both directions counted, up or down; and
    `link_symmetry`: the share of the used links whose reverse is used too, silent where none is used. A link is used
    where the receiver got a model, or a part of one, to mix or to evaluate: what `bytes_received` counts.
    """

    logs = ("link_density", "link_symmetry")

    def on_round_end(self, round: Round) -> None:
        """Count the round's links."""
        used = round.ledger.used
        linked = round.federation.topology.linked(round.index)
        possible = len(linked) + int((~used.within(linked)).sum())
        round.log("link_density", len(used) / possible if possible else 0.0)
        if len(used):
            both_ways = used.places(used.senders, used.receivers) >= 0
            round.log("link_symmetry", int(both_ways.sum()) / len(used))
