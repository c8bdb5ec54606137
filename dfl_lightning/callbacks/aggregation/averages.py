"""Averages whose weights do not look at the models: equal, by number of samples, or written in the topology."""

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
    """All models that are mixed count the same, the receiver's own included.

    Args:
        server_step: eta of a server: new = (1 - eta) old + eta average (FL-FDMS eq. 4), of parameters: its buffers
            become the average. Clients are not affected.
    """

    def __init__(self, server_step: float = 1.0) -> None:
        if server_step <= 0:
            raise UserError(f"aggregation.server_step={server_step}; it must be above 0")
        self.server_step = server_step

    def on_weigh(self, round: Round) -> None:
        """Divide votes by their sum, then take the server's step."""
        shares = self.shares(round.federation)[round.row_owner]
        round.weights = uniform_weights(round.votes * shares[round.voters.senders], round.voters)
        if self.server_step != 1:
            round.weights = server_step(round.weights, round.voters, ~round.clients_only, self.server_step)

    def shares(self, federation: Federation) -> Tensor:
        """Return 1 for each client."""
        return torch.ones(federation.topology.num_nodes, dtype=torch.float64)


class SampleWeighted(Uniform):
    """Clients count by the number of their training samples (FedAvg, arXiv 1602.05629).

    Args:
        server_step: as in `Uniform`.
        count: `train`: the samples that it trains on; `train_and_val`: those held out for validation too (DPFL).
    """

    def __init__(self, server_step: float = 1.0, count: Literal["train", "train_and_val"] = "train") -> None:
        super().__init__(server_step)
        self.count = count

    def shares(self, federation: Federation) -> Tensor:
        """Return numbers of samples; a server has none."""
        shares = torch.zeros(federation.topology.num_nodes, dtype=torch.float64)
        shares[: federation.num_clients] = federation.data.sizes("train").double()
        if self.count == "train_and_val":
            shares[: federation.num_clients] += federation.data.sizes("val").double()
        return shares


class FromTopology(Aggregation):
    """Weights from the `weight` attribute of the topology's edges (and self loops 1), normalised over what is mixed.

    Where the topology has a mixing matrix for each round (`base_graph`), its entries are the weights, and a client's
    own model has the rest of 1: with it the weight of clients that have dropped out, so that mixing never moves the
    mean.
    """

    reads_topology_weights = True

    def start(self, federation: Federation) -> None:
        """Check that links have weights, none of them negative; a graph without links needs none."""
        if any(graph.mixing for graph in federation.topology.graphs) and federation.policy(Substitution) is not None:
            raise UserError(
                f"topology {federation.topology.name}: a client that dropped out has no substitute in a mixing matrix: "
                "its weight goes to the receiver; use --substitution null"
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
        """Multiply votes by edge weights; a substitute has that of the link to its own client, or 1 without one."""
        topology = round.federation.topology
        weights = topology.weights(round.index)
        votes = round.votes
        if weights is not None and topology.at(round.index).mixing:
            others = votes * topology.linked(round.index).spread(weights, round.voters, fill=0.0)
            own = round.voters.receivers == round.voters.senders
            own &= round.voters.any(votes != 0)[round.voters.receivers]  # not in a row of zeros
            round.weights = others + own * (1 - round.voters.sum(others))[round.voters.receivers]
            return
        if weights is not None:  # a graph without links has none
            voters = round.voters
            whose = round.row_owner[voters.senders]  # what a client has sent before comes over the same link
            votes = votes * topology.linked(round.index).look_up(weights, voters.receivers, whose, fill=1.0)
        round.weights = uniform_weights(votes, round.voters)
