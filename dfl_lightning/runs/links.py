"""The links of a round as tables: the models that were mixed, selected and probed, and the substitutes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from dfl_lightning.links import Links

if TYPE_CHECKING:
    from dfl_lightning.round.record import Round


def links_of(round: Round) -> dict[str, np.ndarray]:
    """Return the links on which a round mixed, selected or probed models, as columns.

    The columns are `receiver`, `sender`, `weight` (0 if not mixed), `selected` and `probed`. A sender from n on is a
    stored update of a client; what a client has published on an asynchronous clock is listed as the client itself. The
    round must have mixed, so that its weights are known.
    """
    n, ledger = round.num_nodes, round.ledger
    voters, weights = (_of_owners if round.federation.is_asynchronous else _as_they_are)(round)
    rows = voters.rows
    probed = ledger.probed.difference(_downloads(round))
    mixed = voters.keep(weights != 0)
    selected, probed = (Links(part.receivers, part.senders, n, rows) for part in (round.selected, probed))
    listed = mixed.union(selected).union(probed)
    return {
        "receiver": listed.receivers.numpy().astype(np.int32),
        "sender": listed.senders.numpy().astype(np.int32),
        "weight": voters.spread(weights, listed, 0.0).numpy().astype(np.float32),
        "selected": listed.within(selected).numpy(),
        "probed": listed.within(probed).numpy(),
    }


def _as_they_are(round: Round) -> tuple[Links, Tensor]:
    return round.voters, round.weights


def _of_owners(round: Round) -> tuple[Links, Tensor]:
    """Return the links and weights of what was mixed, with the client of each row as its sender."""
    receivers, owners = round.voters.receivers, round.row_owner[round.voters.senders]
    voters = Links.of(receivers, owners, round.num_nodes)
    weights = torch.zeros(len(voters), dtype=torch.float64)
    return voters, weights.index_add_(0, voters.places(receivers, owners), round.weights)


def substitutes_of(round: Round) -> dict[str, np.ndarray]:
    """Return the rows that were mixed instead of those of selected clients, as columns.

    The columns are `receiver`, `client` (whose row was selected) and `substitute` (the row that was mixed).
    """
    replaced = round.substitute != round.selected.senders
    return {
        "receiver": round.selected.receivers[replaced].numpy().astype(np.int32),
        "client": round.selected.senders[replaced].numpy().astype(np.int32),
        "substitute": round.substitute[replaced].numpy().astype(np.int32),
    }


def _downloads(round: Round) -> Links:
    """Return the links on which clients fetched models to train them; with a server, those of its model."""
    fetched = Links.empty(round.num_nodes)
    for term in round.jobs.terms:
        if isinstance(term.which, Tensor):
            fetched = fetched.union(Links.of(round.jobs.owners, term.which, round.num_nodes))
    return fetched
