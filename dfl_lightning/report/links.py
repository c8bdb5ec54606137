"""What a run keeps of a round's links: which models were mixed, selected and probed, and the stand-ins."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from dfl_lightning.round.record import Round


def links_of(round: Round) -> dict[str, np.ndarray]:
    """The links of a round that mixed, by column: `receiver`, `sender`, `weight`, `selected`, `probed`.

    A sender from n on is a stored update of a client.
    """
    assert round.weights is not None
    assert round.selected is not None
    n = round.num_nodes
    probed = round.ledger.models & ~round.ledger.mixed & ~_downloads(round)
    listed = round.weights != 0
    listed[:, :n] |= round.selected | probed
    receivers, senders = torch.nonzero(listed, as_tuple=True)
    at = receivers, senders.clamp(max=n - 1)
    of_nodes = senders < n
    return {
        "receiver": receivers.numpy().astype(np.int32),
        "sender": senders.numpy().astype(np.int32),
        "weight": round.weights[receivers, senders].numpy().astype(np.float32),
        "selected": (round.selected[at] & of_nodes).numpy(),
        "probed": (probed[at] & of_nodes).numpy(),
    }


def stand_ins_of(round: Round) -> dict[str, np.ndarray]:
    """Which rows were mixed in place of selected clients' own: `receiver`, `client`, `stand_in`."""
    assert round.selected is not None
    assert round.stand_in is not None
    m = round.num_clients
    replaced = round.selected[:, :m] & (round.stand_in[:, :m] != torch.arange(m))
    receivers, clients = torch.nonzero(replaced, as_tuple=True)
    return {
        "receiver": receivers.numpy().astype(np.int32),
        "client": clients.numpy().astype(np.int32),
        "stand_in": round.stand_in[receivers, clients].numpy().astype(np.int32),
    }


def _downloads(round: Round) -> Tensor:
    """Models that clients fetched to train them, bool [n, n]: under a server, its own."""
    fetched = torch.zeros_like(round.ledger.models)
    for term in round.jobs.terms:
        if not term.which.is_floating_point():
            fetched[round.jobs.owners, term.which] = True
    return fetched
