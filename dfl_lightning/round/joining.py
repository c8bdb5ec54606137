"""Clients that join a run late: those that start from a mean of their neighbours' models."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from dfl_lightning.bank.references import References, Term, Weights
from dfl_lightning.links import Links
from dfl_lightning.round.federation import JOINED, Federation
from dfl_lightning.utils.errors import UserError

if TYPE_CHECKING:
    from dfl_lightning.engines.jobs import Trained
    from dfl_lightning.round.record import Round


def refuse_joining(federation: Federation) -> None:
    """Raise if clients are to start from their neighbours' models, and cannot.

    Args:
        federation: the run's data, topology, network and policies.

    Raises:
        UserError: there are servers, an asynchronous clock, or policies that change what clients send.
    """
    if not federation.joins:
        return
    if federation.num_servers:
        raise UserError(
            "join: neighbours is for clients with neighbours, and with a server they start from its model anyway; "
            "use join: own"
        )
    if federation.is_asynchronous:
        raise UserError(
            "join: neighbours starts a client from models of the same round, and clients that do not wait for each "
            "other have no common round; use join: own, or leave out the clock with --clock null"
        )
    changing = [type(policy).__name__ for policy in federation.policies if policy.changes_messages]
    if changing:
        raise UserError(
            f"join: neighbours sends models from before a round's training, which {changing[0]} does not change; use "
            "join: own, or run without --outgoing"
        )


def let_join(round: Round) -> None:
    """Let clients that train for the first time start from the mean of their neighbours' models, and charge these.

    The neighbours are those in reach that are active and have trained before. A client without such neighbours starts
    from its own model. Personal parameters are always its own.

    Args:
        round: the round after its availability is settled; its `jobs` are the clients' own models.
    """
    round.joining = joining_links(round)
    if not len(round.joining):
        return
    owners, n = round.jobs.owners, round.num_nodes
    alone = owners[round.joining.count[owners] == 0]
    starts = round.joining.union(Links.of(alone, alone, n))  # by receiver, then by sender
    place = torch.full((n,), -1)
    place[owners] = torch.arange(len(owners))
    shares = 1 / starts.count.double()
    weights = Weights(place[starts.receivers], starts.senders, shares[starts.receivers], (len(owners), n))
    round.jobs = References((Term("models", weights),), owners, "models")


def joining_links(round: Round) -> Links:
    """Return links to the clients that train for the first time, from neighbours that have trained before."""
    joined = torch.zeros(round.num_nodes, dtype=torch.bool)
    joined[: round.num_clients] = round.bank.number(JOINED) > 0
    return round.reachable.between(round.active & ~joined, round.active & joined)


def charge_starts(round: Round) -> None:
    """Charge the models that the jobs start from; models of neighbours are messages besides their trained ones."""
    if not len(round.joining):
        round.charge(round.jobs)
        return
    trains = torch.zeros(round.num_nodes, dtype=torch.bool)
    trains[round.jobs.owners] = True
    round.charge_starts(round.joining.between(receivers=trains))
    others = round.joining.count[round.jobs.owners] == 0
    round.charge(round.jobs.take(torch.nonzero(others).squeeze(1)))


def note_joined(round: Round, result: Trained) -> None:
    """Remember the clients that have trained.

    Args:
        round: the round after its training.
        result: the result of the training.
    """
    joined = round.bank.number(JOINED).clone()
    joined[round.jobs.owners[result.finite]] = 1.0
    round.bank.set_number(JOINED, joined)
