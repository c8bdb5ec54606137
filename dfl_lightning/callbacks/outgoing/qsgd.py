"""Quantization: every entry of an update travels, in a few bits."""

from __future__ import annotations

from torch import Tensor

from dfl_lightning.callbacks.base import Outgoing
from dfl_lightning.functional import quantized, quantized_bytes
from dfl_lightning.round.senders import Senders
from dfl_lightning.utils.errors import UserError


class QSGD(Outgoing):
    """Each entry of an update is rounded at random to one of a few multiples of its bucket's length.

    The scheme is that of Alistarh et al. (2017, arXiv 1610.02132), section 3.1 with the buckets of section 4, on
    the updates of rounds: with s = 2^(bits-1) - 1 levels and a sign, the expected message is the update. Each bucket
    costs four bytes more, for its length. Only who knows the model that an update starts from can use it: a server
    does. Neighbours do not, and are sent, and charged, the whole model.

    Args:
        bits: of an entry, its sign included, from 2 to 16.
        bucket: how many entries share a length, 1 or more; more of them cost less and are rounded more coarsely.
    """

    sends_updates = True

    def __init__(self, bits: int = 8, bucket: int = 512) -> None:
        if not 2 <= bits <= 16:
            raise UserError(f"outgoing.bits={bits}; an entry takes from 2 to 16 bits, its sign included")
        if bucket < 1:
            raise UserError(f"outgoing.bucket={bucket}; it is a number of entries, 1 or more")
        self.bits, self.bucket = bits, bucket

    def send(self, updates: Tensor, senders: Senders) -> Tensor:
        """Send the entries of updates, rounded at random up or down."""
        return quantized(updates, senders.uniform(updates.shape), self.bits, self.bucket)

    def bytes_of(self, width: int) -> int:
        """Count the bits of all entries, and four bytes for each bucket."""
        return quantized_bytes(width, self.bits, self.bucket)
