"""Sparsification: the largest entries of an update are sent, and the others are kept for later rounds."""

from __future__ import annotations

from torch import Tensor

from dfl_lightning.callbacks.base import Outgoing
from dfl_lightning.functional import entries_kept
from dfl_lightning.round.ledger import BYTES
from dfl_lightning.round.senders import Senders
from dfl_lightning.utils.errors import UserError


class TopK(Outgoing):
    """Sparsified updates with error feedback (sparsified SGD with memory, Stich et al. 2018, arXiv 1809.07599).

        sent = top_k(u + e),    e = u + e - sent

    u is the update of a round, and the residual e starts at 0. An entry takes eight bytes, for its value and its
    position, and a message at most four bytes for each entry of the model. An update is useful only to a receiver that
    has the model that it starts from. A server has it. Neighbours do not, so they receive the whole model that these
    entries lead to, and are charged for it.

    Args:
        share: share of the entries of the shared parameters that is sent, above 0 and at most 1; at least one entry.
    """

    row_sets = {"residual": "zeros"}
    sends_updates = True
    against_clock = "an update is useful only to those that have the model that it starts from"

    def __init__(self, share: float = 0.01) -> None:
        if not 0 < share <= 1:
            raise UserError(f"outgoing.share={share}; it is a share above 0 and at most 1")
        self.share = share

    def send(self, updates: Tensor, senders: Senders) -> Tensor:
        """Return the largest entries of the updates plus residuals, and keep the rest as new residuals."""
        updates = updates + senders.rows("residual")
        kept = senders.largest(updates, self.share)
        senders.write("residual", updates - kept)
        return kept

    def bytes_of(self, width: int) -> int:
        """Count a value and a position for each entry that is sent, or the values of all entries if that is less."""
        return BYTES * min(2 * entries_kept(self.share, width), width)
