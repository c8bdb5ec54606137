"""FedProto's aggregation: clients mix prototypes, class by class, and keep their models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from dfl_lightning.bank.layout import Columns
from dfl_lightning.bank.references import Weights
from dfl_lightning.callbacks.base import Aggregation, Outgoing, Substitution
from dfl_lightning.functional import prototype_shares
from dfl_lightning.links import Links
from dfl_lightning.round.ledger import BYTES
from dfl_lightning.round.record import Round
from dfl_lightning.utils.errors import UserError

if TYPE_CHECKING:
    from dfl_lightning.round.federation import Federation


class PrototypeAverage(Aggregation):
    """A class's prototype becomes the mean of those received and the client's own (FedProto, arXiv 2105.00243, eq. 6).

    P_ic = sum_j n_jc C_jc / sum_j n_jc over client i and those that it selects: C_jc is the mean feature of class c of
    client j, n_jc the number of its training samples of the class. The paper's equation divides by the number of
    clients that have the class, too, so that its prototypes are shorter than features by that factor; here shares sum
    to 1. A client keeps the model that it trained. Clients that have dropped out send nothing and keep their
    prototypes. A message is d numbers, and the count, for each class that the sender has. Needs the objective
    `FedProto`.

    A server averages the prototypes of all that it selects, as in the paper, and keeps those of a class that none of
    them has. Clients that train in a round receive the server's first: d numbers for each class that it knows.

    Args:
        weighting: `samples`, as above; `equal`: clients that have a class count the same, whatever their samples.
    """

    needs_classes = True
    averages_prototypes = True
    state = ("known",)

    def __init__(self, weighting: Literal["samples", "equal"] = "samples") -> None:
        if weighting not in ("samples", "equal"):
            raise UserError(f"aggregation.weighting={weighting}; it is samples or equal")
        self.weighting = weighting
        self.known = torch.zeros(0, dtype=torch.bool)  # classes of which a server has prototypes, [C]
        self._counts = torch.zeros(0, 0)  # samples of each client and class, [n, C]

    def start(self, federation: Federation) -> None:
        """Require prototypes, and count the classes of each client."""
        if "prototypes" not in federation.objective.row_sets:
            raise UserError(
                "aggregation PrototypeAverage mixes prototypes, and objective "
                f"{type(federation.objective).__name__} has none; use --objective FedProto"
            )
        for family, option in ((Substitution, "substitution"), (Outgoing, "outgoing")):
            policy = federation.policy(family)
            if policy is not None:
                raise UserError(
                    f"aggregation PrototypeAverage sends prototypes and no models, which {option} "
                    f"{type(policy).__name__} is for; use --{option} null"
                )
        self._counts = class_counts(federation)
        self.known = torch.zeros(self._counts.shape[1], dtype=torch.bool)

    def on_weigh(self, round: Round) -> None:
        """Set weights to mean shares over the classes that any of the rows has."""
        voters, weights = round.voters, self._shares(round).sum(1)
        total = voters.sum(weights)
        round.weights = weights / total.where(total > 0, 1.0)[voters.receivers]

    def on_mix(self, round: Round) -> None:
        """Mix the sums of features, class by class, and charge what was received."""
        voters, counts, n, every = round.voters, self._counts, round.num_nodes, self._shares(round)
        head = round.federation.objective.prototype_columns(round.bank.layout)  # type: ignore[attr-defined]
        width = (head.stop - head.start) // counts.shape[1]
        for place in range(counts.shape[1]):
            shares = every[:, place]
            used = shares > 0
            where = round.receivers & voters.any(used)
            jobs, senders = (where.cumsum(0) - 1)[voters.receivers[used]], voters.senders[used]
            means = Weights(jobs, senders, shares[used] / counts[senders, place], (int(where.sum()), n))
            columns = Columns([(head.start + place * width, head.start + (place + 1) * width)])
            round.mix([(means, "prototypes")], into="prototypes", where=where, columns=columns)
        sent = voters.keep(every.any(1))
        sizes = BYTES * (width + 1) * (counts > 0).sum(1)
        round.charge_message("prototypes", sent, sizes[sent.senders])
        if round.num_servers:
            self._send_back(round, width, Columns([(head.start, head.stop)]))
            self.known = self.known | every.any(0)

    def _send_back(self, round: Round, width: int, columns: Columns) -> None:
        """Write the server's prototypes at all clients; those that trained have paid for the former ones.

        No client reads the new ones before it takes part in a round again, and then it pays for them.
        """
        m, n = round.num_clients, round.num_nodes
        trained = round.jobs.owners
        size = BYTES * width * int(self.known.sum())
        if size:
            round.charge_message("prototypes", Links.of(trained, torch.full_like(trained, m), n), size)
        of_server = Weights.of_rows(torch.full((m,), m), n)
        round.mix([(of_server, "prototypes")], into="prototypes", where=round.clients_only, columns=columns)

    def _shares(self, round: Round) -> Tensor:
        """Of the rows with a vote, in the mean of each class, [E, C]."""
        counts = self._counts if self.weighting == "samples" else (self._counts > 0).double()
        took_part = torch.zeros(round.num_nodes, dtype=torch.bool)
        took_part[: round.num_clients] = round.participants
        return prototype_shares(counts, round.voters, round.votes * took_part[round.voters.senders])


def class_counts(federation: Federation) -> Tensor:
    """Count the training samples of each class, float64 [n, C].

    Args:
        federation: of the run.
    """
    data, classes = federation.data, federation.data.num_classes
    sizes = data.sizes("train")
    owners = torch.arange(data.num_clients).repeat_interleave(sizes)
    labels = data.labels[data.train.together(torch.arange(data.num_clients)).to(data.labels.device)].cpu()
    codes = owners * classes + labels
    return torch.bincount(codes, minlength=federation.num_nodes * classes).view(-1, classes).double()
