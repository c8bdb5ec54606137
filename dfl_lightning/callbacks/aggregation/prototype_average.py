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
    """The average of prototypes, class by class (FedProto, Tan et al., AAAI 2022, arXiv 2105.00243, eq. 6).

        P_ic = sum_j n_jc C_jc / sum_j n_jc

    The sums are over client i and the clients that it selects. C_jc is the mean feature of class c at client j, and
    n_jc the number of its training samples of the class. The paper's equation also divides by the number of clients
    that have the class, so that its prototypes are shorter than features by that factor; here shares sum to 1. A client
    keeps the model that it trained. Clients that have dropped out send nothing and keep their prototypes. A message has
    d numbers and a count for each class of the sender. The aggregation needs the objective `FedProto`.

    A server averages the prototypes of all clients that it selects, as in the paper, and keeps the prototype of a class
    that they do not have. Clients that train in a round first receive the server's prototypes: d numbers for each class
    that has one.

    Args:
        weighting: `samples`: n_jc as above; `equal`: n_jc is 1 for each client that has the class.
    """

    needs_classes = True
    averages_prototypes = True
    state = ("known",)
    against_clock = "prototypes are those of the same round"

    def __init__(self, weighting: Literal["samples", "equal"] = "samples") -> None:
        if weighting not in ("samples", "equal"):
            raise UserError(f"aggregation.weighting={weighting}; it is samples or equal")
        self.weighting = weighting
        self.known = torch.zeros(0, dtype=torch.bool)  # classes that have a prototype at the server, [C]
        self._counts = torch.zeros(0, 0)  # samples of each client and class, [n, C]

    def start(self, federation: Federation) -> None:
        """Require an objective with prototypes and unchanged messages; count each client's samples of each class."""
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
        """Set weights to each row's mean share over the classes; they are for the records only."""
        voters, weights = round.voters, self._shares(round).sum(1)
        total = voters.sum(weights)
        round.weights = weights / total.where(total > 0, 1.0)[voters.receivers]

    def on_mix(self, round: Round) -> None:
        """Average the prototypes class by class, from the sums of features, and charge the messages."""
        voters, counts, n, all_shares = round.voters, self._counts, round.num_nodes, self._shares(round)
        head = round.federation.objective.prototype_columns(round.bank.layout)  # type: ignore[attr-defined]
        width = (head.stop - head.start) // counts.shape[1]
        for label in range(counts.shape[1]):
            shares = all_shares[:, label]
            used = shares > 0
            where = round.receivers & voters.any(used)
            jobs, senders = (where.cumsum(0) - 1)[voters.receivers[used]], voters.senders[used]
            means = Weights(jobs, senders, shares[used] / counts[senders, label], (int(where.sum()), n))
            columns = Columns([(head.start + label * width, head.start + (label + 1) * width)])
            round.mix([(means, "prototypes")], into="prototypes", where=where, columns=columns)
        sent = voters.keep(all_shares.any(1))
        sizes = BYTES * (width + 1) * (counts > 0).sum(1)
        round.charge_message("prototypes", sent, sizes[sent.senders])
        if round.num_servers:
            self._send_back(round, width, Columns([(head.start, head.stop)]))
            self.known = self.known | all_shares.any(0)

    def _send_back(self, round: Round, width: int, columns: Columns) -> None:
        """Copy the server's prototypes to all clients, and charge the former ones to the clients that trained.

        A client reads the new prototypes when it next takes part in a round, and is charged for them then.
        """
        m, n = round.num_clients, round.num_nodes
        trained = round.jobs.owners
        size = BYTES * width * int(self.known.sum())
        if size:
            round.charge_message("prototypes", Links.of(trained, torch.full_like(trained, m), n), size)
        of_server = Weights.of_rows(torch.full((m,), m), n)
        round.mix([(of_server, "prototypes")], into="prototypes", where=round.clients_only, columns=columns)

    def _shares(self, round: Round) -> Tensor:
        """Return the share of each row with a vote in the mean of each class, float64 [E, C]."""
        counts = self._counts if self.weighting == "samples" else (self._counts > 0).double()
        took_part = torch.zeros(round.num_nodes, dtype=torch.bool)
        took_part[: round.num_clients] = round.participants
        return prototype_shares(counts, round.voters, round.votes * took_part[round.voters.senders])


def class_counts(federation: Federation) -> Tensor:
    """Count the training samples of each node and class, float64 [n, C]; 0 for servers."""
    data, classes = federation.data, federation.data.num_classes
    sizes = data.sizes("train")
    owners = torch.arange(data.num_clients).repeat_interleave(sizes)
    labels = data.labels[data.train.together(torch.arange(data.num_clients)).to(data.labels.device)].cpu()
    codes = owners * classes + labels
    return torch.bincount(codes, minlength=federation.num_nodes * classes).view(-1, classes).double()
