"""Dis-PFL's average: each entry is averaged over the models whose masks keep it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from dfl_lightning.bank.references import Weights
from dfl_lightning.callbacks.aggregation.averages import Uniform
from dfl_lightning.callbacks.base import refuse_stored_rows
from dfl_lightning.round.ledger import BYTES
from dfl_lightning.round.record import Round
from dfl_lightning.utils.errors import UserError

if TYPE_CHECKING:
    from dfl_lightning.round.federation import Federation


KEPT = "what is sent where masks hold"


class MaskedAverage(Uniform):
    """The mean of each entry over the models whose masks keep it (Dis-PFL, Dai et al. 2022, arXiv 2206.00187).

        w_i = (sum_j w_j) / (sum_j m_j) * m_i'          (algorithm 1, line 8)

    The sums are over client i and the clients that it selects. w_j is a model that was trained under the mask m_j, and
    m_i' is the new mask of client i, which it searched after its training. An entry that no model has becomes 0. A
    message has 4 bytes for each entry that the mask keeps and for each number that is never masked, and one bit for
    each entry that may be masked. The aggregation needs the objective `DisPFL`.
    """

    supports_servers = False
    supports_clock = False
    against_clock = "masks change by rounds that are the same for all clients"

    def __init__(self) -> None:
        super().__init__()

    def start(self, federation: Federation) -> None:
        """Require an objective that keeps masks."""
        if not {"mask", "next_mask"} <= set(federation.objective.row_sets):
            raise UserError(
                "aggregation MaskedAverage averages models where their masks hold, and objective "
                f"{type(federation.objective).__name__} has no masks; use --objective DisPFL, or --aggregation Uniform"
            )
        refuse_stored_rows(federation, self, "averages")

    def on_trained(self, round: Round) -> None:
        """Set the bytes of a message, unless an Outgoing policy has set them."""
        objective, layout, ledger = round.federation.objective, round.bank.layout, round.ledger
        entries = [entry for entry in layout.entries if not entry.is_buffer]
        numbers = objective.kept or [entry.stop - entry.start for entry in entries]
        sent = [(entry, number) for entry, number in zip(entries, numbers, strict=True) if layout.is_shared(entry)]
        kept = sum(number for _, number in sent)
        possible = sum(entry.stop - entry.start for entry, _ in sent if entry.trainable and len(entry.shape) > 1)
        buffers = len(layout.shared) - len(layout.shared_parameters)
        size = BYTES * (kept + buffers) + -(-possible // 8)
        clients = torch.arange(round.num_clients)
        unsized = clients if ledger.sizes is None else clients[ledger.sizes[clients] < 0]
        ledger.resize(unsized, size)

    def on_mix(self, round: Round) -> None:
        """Divide sums of models by sums of masks, under the receiver's new mask."""
        voters, weights = round.voters, round.weights
        n, where = round.num_nodes, round.receivers & voters.any(weights != 0)
        counted = (weights != 0) & where[voters.receivers]
        receivers, senders = voters.receivers[counted], voters.senders[counted]
        shape = (int(where.sum()), n)
        sums = Weights((where.cumsum(0) - 1)[receivers], senders, weights[counted], shape)
        round.bank.scratch("sum of models")
        round.bank.scratch("sum of masks")
        terms = [(sums, "trained")]
        if round.bank.changes_messages:  # noise or an attack may change masked entries, which are not sent
            round.bank.scratch(KEPT)
            round.combine(torch.mul, ["sent", "mask"], into=KEPT, where=round.clients_only)
            terms = [(sums.keep(senders == receivers), "trained"), (sums.keep(senders != receivers), KEPT)]
        round.mix(terms, into="sum of models", where=where)
        round.mix([(sums, "mask")], into="sum of masks", where=where)
        round.ledger.fetch(receivers, senders, mixed=True)
        round.combine(_masked_mean, ["sum of models", "sum of masks", "next_mask"], into="models", where=where)


def _masked_mean(models: torch.Tensor, masks: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
    return torch.where(masks > 0, models / masks.clamp(min=1e-30), 0.0) * own
