"""IFCA: several servers, and each client goes to the one whose model fits its data best."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from dfl_lightning.bank.references import References, Term
from dfl_lightning.callbacks.base import Selection, Substitution
from dfl_lightning.functional import best_server
from dfl_lightning.links import Links
from dfl_lightning.round.record import Round
from dfl_lightning.utils.errors import UserError

if TYPE_CHECKING:
    from dfl_lightning.round.federation import Federation


class IFCA(Selection):
    """Each client trains the server's model with the lowest loss on its training data (IFCA, arXiv 2006.04088).

    To choose it fetches the models of all servers; it returns the trained one to its server, which averages. The number
    of servers is the topology's (`generator: server, args: {servers: 4}`), their models must start apart (`model.init:
    independent`). A server that no client chose keeps its model. In an evaluation a client is evaluated by the server's
    model that fits its training data best at that time.
    """

    k: Literal["all"] = "all"
    assigns_servers = True

    def start(self, federation: Federation) -> None:
        """Require servers with different models, and no substitution."""
        if not federation.topology.num_servers:
            raise UserError(
                "selection IFCA assigns clients to servers; use a topology with servers, as generator: server"
            )
        if federation.topology.num_servers > 1 and federation.init != "independent":
            raise UserError(
                f"selection IFCA: servers with equal models stay equal, and model.init={federation.init} makes them "
                "so; set model.init to independent"
            )
        if federation.policy(Substitution) is not None:
            raise UserError(
                "selection IFCA does not know which server a client that is down would go to; use --substitution null"
            )

    def on_propose(self, round: Round) -> None:
        """All clients that are up fetch the servers' models and start from the best; its server mixes them."""
        m, owners = round.num_clients, round.jobs.owners
        servers = torch.arange(m, round.num_nodes)
        which, judges = servers.repeat(len(owners)), owners.repeat_interleave(len(servers))
        losses = round.evaluate(References.rows("models", which, judges)).losses
        chosen = m + best_server(losses.view(len(owners), len(servers)))
        round.jobs = References((Term("models", chosen),), owners, "models")
        round.candidates = Links.of(chosen, owners, round.num_nodes).both(round.available)
        for index, server in enumerate(servers.tolist()):
            round.log(f"server_{index}_clients", int((chosen == server).sum()))

    def on_select(self, round: Round) -> None:
        """Each server mixes the clients that chose it."""
        round.selected = round.candidates

    def assign(self, federation: Federation, owners: Tensor) -> Tensor:
        """The best server of each client, by the present models and the clients' training data."""
        m, c = federation.num_clients, federation.topology.num_servers
        which, judges = torch.arange(m, m + c).repeat(len(owners)), owners.repeat_interleave(c)
        losses = federation.engine.evaluate(References.rows("models", which, judges), "train").losses
        return best_server(losses.view(len(owners), c))
