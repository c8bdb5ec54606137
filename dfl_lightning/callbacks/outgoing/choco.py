"""CHOCO-SGD's messages: compressed differences to a public copy of the model, which all neighbours keep."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from torch import Tensor

from dfl_lightning.callbacks.base import Aggregation, Dropout, Outgoing
from dfl_lightning.functional import entries_kept, quantized, quantized_bytes
from dfl_lightning.round.ledger import BYTES
from dfl_lightning.round.senders import Senders
from dfl_lightning.utils.errors import UserError

if TYPE_CHECKING:
    from dfl_lightning.round.federation import Federation

BUCKET = 512
"""Number of entries that share one length when they are quantized."""


class CHOCO(Outgoing):
    """The messages of CHOCO-SGD (Koloskova, Stich and Jaggi 2019, arXiv 1902.00340, algorithm 2).

        q = Q(x - x_hat),    x_hat = x_hat + q

    A client sends q, the compressed difference of its trained model x to its public copy x_hat, which starts at 0. The
    client and all its neighbours add q to x_hat, and the aggregation `CHOCOMix` mixes the copies. What the compression
    leaves out stays in the difference, and is sent later. One copy of each client, the row set `public`, stands for
    those of all its neighbours. This is right only if no message is lost: dropouts, links that change and selections of
    some neighbours are refused. Unlike `TopK` and `QSGD` it saves bytes between neighbours. Q keeps the largest
    entries, or quantizes all of them as `QSGD` does, divided by 1 + min(d / s^2, sqrt(d) / s) as in the paper, with s =
    2^(bits-1) - 1 levels and buckets of d entries.

    Args:
        share: share of the entries that are kept, above 0 and at most 1; default 0.1 if `bits` is not given.
        bits: bits of a quantized entry, its sign included, from 2 to 16, instead of a share.
    """

    method_name = "CHOCO-SGD"
    row_sets = {"public": "zeros"}
    supports_servers = False
    sends_public_copies = True
    against_clock = "all neighbours keep copies of a model that change in the same round"

    def __init__(self, share: float | None = None, bits: int | None = None) -> None:
        if share is not None and bits is not None:
            raise UserError("outgoing.share and outgoing.bits both say how differences are compressed; keep one")
        if share is not None and not 0 < share <= 1:
            raise UserError(f"outgoing.share={share}; it is a share above 0 and at most 1")
        if bits is not None and not 2 <= bits <= 16:
            raise UserError(f"outgoing.bits={bits}; an entry takes from 2 to 16 bits, its sign included")
        self.share, self.bits = 0.1 if share is None and bits is None else share, bits

    def start(self, federation: Federation) -> None:
        """Require the aggregation that mixes public copies, and refuse policies and graphs that lose messages."""
        super().start(federation)
        aggregation = federation.require(Aggregation)
        if not aggregation.mixes_public_copies:
            raise UserError(
                "outgoing CHOCO sends differences to public copies, which aggregation "
                f"{type(aggregation).__name__} does not mix; use --aggregation CHOCOMix"
            )
        last = [policy for policy in federation.policies if isinstance(policy, Outgoing)][-1]
        if last is not self:
            raise UserError(
                f"outgoing CHOCO must be the last of the list, since {type(last).__name__} after it would change "
                "copies that all neighbours have"
            )
        lost = "outgoing CHOCO needs every message to arrive, since neighbours add it to their copies, and "
        dropout = federation.policy(Dropout)
        if dropout is not None:
            raise UserError(f"{lost}with {type(dropout).__name__} some clients receive none; use --dropout null")
        if federation.topology.changes:
            raise UserError(f"{lost}the links of topology {federation.topology.name} change; use a fixed graph")
        if not aggregation.is_symmetric(federation):
            raise UserError(
                f"{lost}not all neighbours are selected, or links are not mutual; use --selection Gossip --selection.k "
                "all on an undirected topology"
            )

    def send(self, updates: Tensor, senders: Senders) -> Tensor:
        """Add the compressed difference to the public copy, and return the new copy as an update of the start."""
        before = senders.rows("public")
        after = before + self._compressed(senders.starts + updates - before, senders)
        senders.write("public", after)
        return after - senders.starts

    def bytes_of(self, width: int) -> int:
        """Count the bytes of a difference: values and positions, or bits and a length for each bucket."""
        if self.bits is not None:
            return quantized_bytes(width, self.bits, BUCKET)
        return BYTES * min(2 * entries_kept(self.share or 0.0, width), width)

    def _compressed(self, differences: Tensor, senders: Senders) -> Tensor:
        if self.bits is None:
            return senders.largest(differences, self.share or 0.0)
        levels, size = 2 ** (self.bits - 1) - 1, min(BUCKET, differences.shape[1])
        noise = min(size / levels**2, math.sqrt(size) / levels)
        return quantized(differences, senders.uniform(differences.shape), self.bits, BUCKET) / (1 + noise)
