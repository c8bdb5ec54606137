"""Messages of clients that push: their sizes, the time that they are under way, and how many are so at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dfl_lightning.callbacks.base import Aggregation, Outgoing
from dfl_lightning.callbacks.clock.durations import refuse_endless
from dfl_lightning.callbacks.devices import Devices
from dfl_lightning.functional import to_nanoseconds, versions_kept
from dfl_lightning.functional.waves import NANOSECONDS
from dfl_lightning.round.ledger import BYTES
from dfl_lightning.round.record import Round
from dfl_lightning.utils.errors import UserError
from dfl_lightning.utils.words import nth_round

if TYPE_CHECKING:
    from dfl_lightning.round.federation import Federation

MOST_VERSIONS = 4
"""Largest number of models of a client that are kept: those that are under way, and the last one before them."""


class Pushes:
    """The models that clients push over the links of a topology that does not change.

    Args:
        federation: the run's data, topology, network and policies.
        devices: each client's device, after its `start`.

    Attributes:
        sizes: bytes of each client's message, long [m].

    Raises:
        UserError: the topology changes, the aggregation mixes models that are not pushed, or a message takes so long
            that it is not counted.
    """

    def __init__(self, federation: Federation, devices: Devices) -> None:
        self._devices = devices
        aggregation = federation.require(Aggregation)
        if aggregation.mixes_current_models:
            raise UserError(
                f"clock.waits=false: aggregation {type(aggregation).__name__} mixes models as they are when a client "
                "finishes, and these are not pushed; use --clock.waits true"
            )
        if federation.topology.changes:
            raise UserError(
                "clock.waits=false: the links of the topology change from round to round, so that a model could be "
                "under way over a link that is gone; use a topology that stays the same, or --clock.waits true"
            )
        layout, m = federation.layout, federation.num_clients
        self.sizes = torch.full((m,), BYTES * len(layout.shared))
        for policy in federation.policies:
            sizes = policy.message_bytes(federation) if isinstance(policy, Outgoing) else None
            if sizes is not None:
                self.sizes = torch.where(sizes < 0, self.sizes, sizes)
        links = federation.topology.linked(0)
        seconds = self._devices.link_seconds(links.receivers, links.senders, self.sizes[links.senders])
        longest = torch.zeros(m, dtype=torch.float64).scatter_reduce(0, links.senders, seconds, "amax")
        refuse_endless(longest, "sending", "raise up and down, or lower latency")
        self._longest = to_nanoseconds(longest)
        self._slowest = torch.zeros(m, dtype=torch.long)  # of each sender, the receiver that gets its message last
        last = seconds == longest[links.senders]
        self._slowest[links.senders[last]] = links.receivers[last]

    def travel(self, receivers: Tensor, senders: Tensor) -> Tensor:
        """Return the time in which the senders' models reach the receivers, in nanoseconds, long [e].

        Args:
            receivers: long [e].
            senders: long [e].
        """
        return to_nanoseconds(self._devices.link_seconds(receivers, senders, self.sizes[senders]))

    def versions(self, cost: Tensor) -> int:
        """Return how many models of a client must be kept, the largest number over clients.

        Args:
            cost: duration of each client's training, in nanoseconds, long [m].

        Raises:
            UserError: they are more than `MOST_VERSIONS`.
        """
        kept = versions_kept(self._longest, cost)
        if int(kept.max()) > MOST_VERSIONS:
            sender = int(kept.argmax())
            took, trained = (float(times[sender]) / NANOSECONDS for times in (self._longest, cost))
            raise UserError(
                f"clock.waits=false: a model of client {sender} takes {took:.3g} s to reach client "
                f"{int(self._slowest[sender])}, and client {sender} sends one every {trained:.3g} s, so that "
                f"{int(kept[sender]):,} of them would have to be kept, and at most {MOST_VERSIONS} are; raise up and "
                "down, lower latency or speed, or use --clock.waits true"
            )
        return int(kept.max())

    def charge(self, round: Round, senders: Tensor) -> None:
        """Charge the models that clients send in a wave, one for each out-neighbour.

        Args:
            round: the round after `on_outgoing`.
            senders: the clients that have finished a training, long [k].

        Raises:
            UserError: a policy has set another size of messages than it has announced.
        """
        set_now = round.ledger.model_bytes(len(round.bank.layout.shared))[senders]
        other = torch.nonzero(set_now != self.sizes[senders]).squeeze(1)
        if len(other):
            raise UserError(
                f"{nth_round(round.index)}: the message of client {int(senders[other[0]])} has "
                f"{int(set_now[other[0]]):,} bytes, and {int(self.sizes[senders[other[0]]]):,} before the run; sizes "
                "must not change if clients push (Outgoing.message_bytes), or use --clock.waits true"
            )
        sends = torch.zeros(round.num_nodes, dtype=torch.bool)
        sends[senders] = True
        round.ledger.push(round.reachable.between(senders=sends))
