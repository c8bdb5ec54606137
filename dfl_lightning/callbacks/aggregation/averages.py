"""Averages whose weights do not depend on the models: equal, by number of samples, or given by the topology."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from dfl_lightning.callbacks.base import Aggregation, Substitution
from dfl_lightning.functional import server_step, uniform_weights
from dfl_lightning.round.record import Round
from dfl_lightning.utils.errors import UserError

if TYPE_CHECKING:
    from dfl_lightning.round.federation import Federation


class Uniform(Aggregation):
    """The plain average of the selected models and the receiver's own.

        W_ij = v_ij / sum_k v_ik

    v_ij is the number of votes of model j: 1 for each selected j and for i itself, more if j also stands in for clients
    that have dropped out. A server takes a step of length eta towards the average, W' = (1 - eta) I + eta W (FL-FDMS,
    arXiv 2205.13222, eq. 4).

    Args:
        server_step: eta, above 0; 1 is the average itself. It applies to a server's parameters; a server's buffers
            become the average. Clients are not affected.
    """

    supports_clock = True

    def __init__(self, server_step: float = 1.0) -> None:
        if server_step <= 0:
            raise UserError(f"aggregation.server_step={server_step}; it must be above 0")
        self.server_step = server_step

    def on_weigh(self, round: Round) -> None:
        """Multiply votes by each row's share, divide by their sum, and take the server's step."""
        shares = self.shares(round.federation)[round.row_owner]
        round.weights = uniform_weights(round.votes * shares[round.voters.senders], round.voters)
        if self.server_step != 1:
            round.weights = server_step(round.weights, round.voters, ~round.clients_only, self.server_step)

    def shares(self, federation: Federation) -> Tensor:
        """Return 1 for each client."""
        return torch.ones(federation.topology.num_nodes, dtype=torch.float64)


class SampleWeighted(Uniform):
    """The average weighted by numbers of training samples (FedAvg, McMahan et al. 2017, arXiv 1602.05629).

        W_ij = v_ij n_j / sum_k v_ik n_k

    n_j is the number of samples of client j. v_ij is its number of votes: 1 for each selected j and for i itself, more
    if j also stands in for clients that have dropped out.

    Args:
        server_step: as in `Uniform`.
        count: `train`: the samples that a client trains on; `train_and_val`: also its validation samples (DPFL).
    """

    def __init__(self, server_step: float = 1.0, count: Literal["train", "train_and_val"] = "train") -> None:
        super().__init__(server_step)
        self.count = count

    def shares(self, federation: Federation) -> Tensor:
        """Return the number of samples of each node; 0 for a server."""
        shares = torch.zeros(federation.topology.num_nodes, dtype=torch.float64)
        shares[: federation.num_clients] = federation.data.sizes("train").double()
        if self.count == "train_and_val":
            shares[: federation.num_clients] += federation.data.sizes("val").double()
        return shares


class FromTopology(Aggregation):
    """The average weighted by the `weight` attribute of the topology's edges.

        W_ij = v_ij a_ij / sum_k v_ik a_ik

    a_ij is the weight of the link from j to i, a_ii = 1, and v_ij is the number of votes of model j.

    If the topology has a mixing matrix for each round (`base_graph`), its entries are the weights W_ij of the others,
    and a client's own model has the rest, W_ii = 1 - sum_j W_ij. The rest includes the weights of clients that have
    dropped out, so that mixing never moves the mean of all models.
    """

    reads_topology_weights = True
    supports_clock = True

    def start(self, federation: Federation) -> None:
        """Require weights of all links, none of them negative; a graph without links needs no weights."""
        if any(graph.mixing for graph in federation.topology.graphs) and federation.policy(Substitution) is not None:
            raise UserError(
                f"topology {federation.topology.name}: a client that dropped out has no substitute in a mixing matrix: "
                "its weight goes to the receiver; use --substitution null"
            )
        if any(graph.mixing for graph in federation.topology.graphs) and federation.is_asynchronous:
            raise UserError(
                f"topology {federation.topology.name} prescribes a mixing matrix for each round, and clients that do "
                "not wait for each other have no common round; use another topology, or leave out the clock"
            )
        for graph in federation.topology.graphs:
            links = graph.linked(0)
            if not len(links):
                continue
            weights = graph.weights()
            if weights is None:
                raise UserError(
                    "aggregation FromTopology needs a 'weight' attribute on every edge of the topology's graph file"
                )
            if (weights < 0).any():
                first = int(torch.nonzero(weights < 0)[0])
                raise UserError(
                    "aggregation FromTopology averages, so no weight may be negative; the link from "
                    f"{int(links.senders[first])} to {int(links.receivers[first])} has {float(weights[first]):g}"
                )

    def on_weigh(self, round: Round) -> None:
        """Multiply votes by edge weights; a row without a link to its client has the weight 1."""
        topology = round.federation.topology
        weights = topology.weights(round.index)
        votes = round.votes
        if weights is not None and topology.at(round.index).mixing:
            others = votes * topology.linked(round.index).spread(weights, round.voters, fill=0.0)
            own = round.voters.receivers == round.voters.senders
            own &= round.voters.any(votes != 0)[round.voters.receivers]  # a receiver without votes keeps its model
            round.weights = others + own * (1 - round.voters.sum(others))[round.voters.receivers]
            return
        if weights is not None:  # a graph without links has no weights
            voters = round.voters
            owners = round.row_owner[voters.senders]  # a stored model of a client has the weight of the client's link
            votes = votes * topology.linked(round.index).look_up(weights, voters.receivers, owners, fill=1.0)
        round.weights = uniform_weights(votes, round.voters)
