"""Quantization: all entries of an update are sent in a few bits each."""

from __future__ import annotations

from torch import Tensor

from dfl_lightning.callbacks.base import Outgoing
from dfl_lightning.functional import quantized, quantized_bytes
from dfl_lightning.round.senders import Senders
from dfl_lightning.utils.errors import UserError


class QSGD(Outgoing):
    """Quantized updates (QSGD, Alistarh et al. 2017, arXiv 1610.02132, section 3.1 with the buckets of section 4).

        sent_c = |u| sign(u_c) level_c / s,    s = 2^(bits-1) - 1
        level_c = floor(a) + 1 with probability a - floor(a), else floor(a),    a = s |u_c| / |u|

    u is a bucket of the round's update, with entries u_c. The expected message is the update. Each bucket takes four
    more bytes for its length |u|. An update is useful only to a receiver that has the model that it starts from. A
    server has it. Neighbours do not, so they receive the whole model, and are charged for it.

    Args:
        bits: bits of an entry, its sign included, from 2 to 16.
        bucket: number of entries that share a length, 1 or more; larger buckets take fewer bytes and are rounded more
            coarsely.
    """

    sends_updates = True
    supports_clock = True

    def __init__(self, bits: int = 8, bucket: int = 512) -> None:
        if not 2 <= bits <= 16:
            raise UserError(f"outgoing.bits={bits}; an entry takes from 2 to 16 bits, its sign included")
        if bucket < 1:
            raise UserError(f"outgoing.bucket={bucket}; it is a number of entries, 1 or more")
        self.bits, self.bucket = bits, bucket

    def send(self, updates: Tensor, senders: Senders) -> Tensor:
        """Return the updates with entries rounded up or down at random."""
        return quantized(updates, senders.uniform(updates.shape), self.bits, self.bucket)

    def bytes_of(self, width: int) -> int:
        """Count the bits of all entries, and four bytes for each bucket."""
        return quantized_bytes(width, self.bits, self.bucket)
