"""Compression: a few entries of an update travel, and the others later."""

from __future__ import annotations

from torch import Tensor

from dfl_lightning.callbacks.base import Outgoing
from dfl_lightning.functional import entries_kept
from dfl_lightning.round.ledger import BYTES
from dfl_lightning.round.senders import Senders
from dfl_lightning.utils.errors import UserError


class TopK(Outgoing):
    """Only the largest entries of an update travel; the rest is kept and added to the next one (error feedback).

    The scheme is that of sparsified SGD with memory (Stich et al. 2018, arXiv 1809.07599), on the updates of rounds. An
    entry costs eight bytes, its value and its position, and a message never more than all values, of four bytes each.
    Only who knows the model that an update starts from can use it: a server does. Neighbours do not, and are sent, and
    charged, the whole model that these entries make.

    Args:
        share: of the entries of the shared parameters, above 0 and at most 1; one entry at least.
    """

    row_sets = {"residual": "zeros"}
    sends_updates = True

    def __init__(self, share: float = 0.01) -> None:
        if not 0 < share <= 1:
            raise UserError(f"outgoing.share={share}; it is a share above 0 and at most 1")
        self.share = share

    def send(self, updates: Tensor, senders: Senders) -> Tensor:
        """Send the largest entries of the update and what was kept so far; keep the rest."""
        updates = updates + senders.rows("residual")
        kept = senders.largest(updates, self.share)
        senders.write("residual", updates - kept)
        return kept

    def bytes_of(self, width: int) -> int:
        """Count a value and a position for each entry that is kept, or the values of all, whichever is less."""
        return BYTES * min(2 * entries_kept(self.share, width), width)
