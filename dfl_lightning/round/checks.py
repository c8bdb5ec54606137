"""Checks of the fields that policies write into a round; each raises a `UserError` that names the policy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import torch
from torch import Tensor

from dfl_lightning.links import AllPairs, Links
from dfl_lightning.round.record import Round
from dfl_lightning.utils.errors import UserError
from dfl_lightning.utils.words import nth_round

TOLERANCE = 1e-6
"""Largest accepted difference of a sum of weights from 1."""


def refuse(index: int, policy: object | None, what: str) -> NoReturn:
    """Raise a `UserError` that names the round and the policy.

    Args:
        index: the round, 0-based.
        policy: the policy that made the mistake; None: the run itself.
        what: the mistake, as a verb phrase.
    """
    who = "the run" if policy is None else type(policy).__name__
    raise UserError(f"{nth_round(index)}: {who} {what}")


def check_topology(index: int, links: object, nodes: int) -> None:
    """Raise unless the topology's links of a round are between its nodes, and no node is linked to itself."""
    check_links(index, links, nodes, None, "a topology's links")
    assert isinstance(links, Links)
    if isinstance(links, AllPairs):
        return
    loops = links.receivers[links.receivers == links.senders]
    if len(loops):
        refuse(index, None, f"has a topology with self loops, the first at node {int(loops[0])}")


def check_links(index: int, links: object, nodes: int, policy: object | None, field: str) -> None:
    """Raise unless a value is a list of links between the nodes of the run.

    Args:
        index: the round, 0-based.
        links: the value that was written.
        nodes: n, the number of clients and servers.
        policy: the policy that wrote it; None: the run itself.
        field: the field's name.
    """
    if isinstance(links, Links):
        got = (links.nodes, links.rows)
        if got != (nodes, nodes):
            refuse(index, policy, f"wrote {field} between {got[0]} nodes; there are {nodes}")
        return
    matrix = isinstance(links, Tensor)
    kind = f"{str(links.dtype)[6:]} {list(links.shape)}" if isinstance(links, Tensor) else type(links).__name__
    remedy = "; a matrix becomes one by Links.from_mask(matrix)" if matrix else ""
    refuse(index, policy, f"wrote {field} of type {kind}; it must be Links{remedy}")


def check_jobs(round: Round, policy: object | None) -> None:
    """Raise if a client has two jobs, or has dropped out and has one."""
    owners = round.jobs.owners
    twice = torch.nonzero(torch.bincount(owners, minlength=1) > 1).squeeze(1)
    if len(twice):
        refuse(round.index, policy, f"proposed two jobs for client {int(twice[0])}")
    absent = owners[~round.active[owners]]
    if len(absent):
        refuse(round.index, policy, f"proposed a job for client {int(absent[0])}, which dropped out")


def check_reach(round: Round, links: Links, policy: object | None, did: str) -> None:
    """Raise if a receiver looks at, or learns from, a node that is not among its available in-neighbours.

    Args:
        round: the round, with its `available` links.
        links: the links that were written.
        policy: the policy that wrote them.
        did: the verb of the sentence, `proposed` or `selected`.
    """
    if links is round.available or (links is round.candidates and did == "selected"):
        return  # these links have been checked
    wrong = ~links.within(round.available)
    if not wrong.any():
        return
    first = int(torch.nonzero(wrong)[0])
    receiver, sender = int(links.receivers[first]), int(links.senders[first])
    if receiver == sender:
        why = "is the receiver itself"
    elif not bool(links.keep(wrong).within(round.reachable)[0]):
        why = "is out of its reach"
    else:
        why = "dropped out" if round.receivers[receiver] else "is in its reach, but the receiver does not mix"
    refuse(
        round.index, policy, f"{did} sender {sender} for receiver {receiver}, which {why}; stay within round.available"
    )


def check_field(
    round: Round, field: str, kind: type, shape: tuple[int, ...], policy: object | None, why: str = ""
) -> None:
    """Raise unless a field that has a value is a tensor of this kind and shape.

    Args:
        round: the round, which may have no value for the field.
        field: the field's name.
        kind: `int` (long) or `float` (any floating dtype).
        shape: the shape that the next hook reads.
        policy: the policy that wrote it.
        why: an explanation of the shape.
    """
    if not round.has(field):
        return
    value = getattr(round, field)
    if not isinstance(value, Tensor):
        refuse(round.index, policy, f"wrote {field} of type {type(value).__name__}; it must be a tensor")
    right = value.is_floating_point() if kind is float else value.dtype == torch.long
    if not right or value.shape != shape:
        got = f"{str(value.dtype)[6:]} {list(value.shape)}"
        must = f"{kind.__name__} {list(shape)}{why and ', '}{why}"
        refuse(round.index, policy, f"wrote {field} of type {got}; it must be {must}")


def check_substitutes(round: Round, rows: int, policy: object | None) -> None:
    """Raise unless each selected sender's substitute is an existing row, or -1 for the mean.

    Args:
        round: the round, with `selected` and `substitute`.
        rows: the number of rows that may be mixed.
        policy: the substitution.
    """
    check_field(round, "substitute", int, (len(round.selected),), policy, "as many as are selected")
    wrong = (round.substitute < -1) | (round.substitute >= rows)
    if wrong.any():
        what = first_wrong(wrong, round.substitute, round.selected)
        refuse(
            round.index,
            policy,
            f"names a row that does not exist: {what}; rows are 0 to {rows - 1}, or -1 for the mean",
        )


def check_weights(round: Round, policy: object | None, column_stochastic: bool) -> None:
    """Raise unless the weights are finite, on rows with a vote, and sum to 1 over each receiver's rows.

    Args:
        round: the round, with `voters` and `votes`.
        policy: the aggregation.
        column_stochastic: check instead that the weights of each sender, its own included, sum to 1 (push-sum).
    """
    if not round.has("weights"):
        refuse(round.index, policy, "wrote no weights; write round.weights in on_weigh")
    weights, votes, voters = round.weights, round.votes, round.voters
    got, asked = list(weights.shape), list(votes.shape)
    if got != asked:
        refuse(round.index, policy, f"wrote weights {got}; they must be {asked}, as round.votes is")
    wrong = ~weights.isfinite()
    if wrong.any():
        what = first_wrong(wrong, weights, voters)
        refuse(round.index, policy, f"wrote a weight that is not finite: {what}")
    idle = (weights != 0) & (votes == 0) & (voters.receivers != voters.senders)
    if idle.any():
        what = first_wrong(idle, weights, voters)
        refuse(round.index, policy, f"assigned a weight to a row that was not selected: {what}")
    if column_stochastic:
        sent = torch.zeros(voters.rows, dtype=torch.float64).index_add_(0, voters.senders, weights.double())
        sends = torch.zeros(voters.rows, dtype=torch.bool)
        sends[voters.senders[weights != 0]] = True
        off = ((sent - 1).abs() >= TOLERANCE) & sends
        if off.any():
            sender = int(torch.nonzero(off)[0])
            refuse(
                round.index,
                policy,
                f"wrote weights whose sum over the receivers of sender {sender} is {float(sent[sender]):.6g}; "
                "the weights of each sender must sum to 1",
            )
        return
    sums = voters.sum(weights.double())
    # A weight may be negative: a server with a step size above 1 gives its old model a negative weight.
    off = ((sums - 1).abs() >= TOLERANCE) & voters.any(weights != 0)
    if off.any():
        refuse(round.index, policy, f"wrote weights that do not sum to 1: {first_wrong(off, sums)} as their sum")


def check_sent(round: Round, outgoing: Sequence[object]) -> None:
    """Raise if what a client sends is not finite, in all processes alike.

    Args:
        round: the round, after `on_outgoing`.
        outgoing: the policies that change messages.
    """
    bank = round.bank
    if not bank.changes_messages or bank.ranks.all(all_finite(bank.rows("sent"))):
        return
    client = _first_broken(round, bank.rows("sent"))
    names = " and ".join(type(policy).__name__ for policy in outgoing)
    raise UserError(f"{nth_round(round.index)}: outgoing {names}: what client {client} sends is not finite")


def check_mixed(round: Round, policy: object | None) -> None:
    """Raise if a mixed model is not finite, in all processes alike."""
    models = round.bank.next_rows()["models"]
    if not round.bank.ranks.all(all_finite(models)):
        receiver = _first_broken(round, models)
        refuse(round.index, policy, f"mixed a model that is not finite, for receiver {receiver}")


def _first_broken(round: Round, rows: Tensor) -> int:
    """Return the first node of all processes whose row, [own, width], is not finite."""
    ranks = round.bank.ranks
    here = ranks.own[~rows.isfinite().all(1).cpu()]
    return ranks.least(int(here[0]) if len(here) else round.num_nodes)


def first_wrong(wrong: Tensor, values: Tensor, links: Links | None = None) -> str:
    """Describe the first entry that is wrong.

    Args:
        wrong: bool [n] over receivers, or [E] over links.
        values: the values, of the same shape.
        links: the links, if `values` has an entry for each link; None: an entry for each receiver.

    Examples:
        >>> two = Links.of(torch.tensor([0, 1]), torch.tensor([1, 0]), nodes=2)
        >>> first_wrong(torch.tensor([False, True]), torch.tensor([0.5, torch.nan]), two)
        'receiver 1 has nan for row 0'
    """
    entry = int(torch.nonzero(wrong)[0])
    value = f"{values[entry].item():.6g}"
    if links is None:
        return f"receiver {entry} has {value}"
    return f"receiver {int(links.receivers[entry])} has {value} for row {int(links.senders[entry])}"


def all_finite(rows: Tensor) -> bool:
    """Return True if no entry is NaN or infinite.

    If an entry is not finite, neither is the sum of all entries. Since that sum may also overflow, each row is then
    summed in float64, which copies the row.
    """
    return bool(rows.sum().isfinite()) or all(bool(row.sum(dtype=torch.float64).isfinite()) for row in rows)
