"""The share of the possible links that a round uses."""

from __future__ import annotations

from dfl_lightning.callbacks.base import Monitor
from dfl_lightning.round.record import Round


class GraphSparsity(Monitor):
    """Share of the possible links over which a message was received, and share of these that are used both ways.

    Logs `link_density`: used links / links of the round's topology, with both directions counted and links of clients
    that have dropped out included; and `link_symmetry`: the share of the used links whose reverse is also used, not
    logged if no link is used. A link is used if the receiver got a model or a part of one, to mix or to evaluate it;
    `bytes_received` counts the same messages.
    """

    logs = ("link_density", "link_symmetry")

    def on_round_end(self, round: Round) -> None:
        """Log density and symmetry of the round's used links."""
        used = round.ledger.used
        linked = round.federation.topology.linked(round.index)
        possible = len(linked) + int((~used.within(linked)).sum())
        round.log("link_density", len(used) / possible if possible else 0.0)
        if len(used):
            both_ways = used.places(used.senders, used.receivers) >= 0
            round.log("link_symmetry", int(both_ways.sum()) / len(used))
