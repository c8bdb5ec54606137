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
    _known: tuple[int, Tensor, Tensor] | None = None
    """Round and models of a boundary, and the losses of all clients' choices there; a round makes others of them."""

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
                "selection IFCA does not know which server a client that dropped out would go to; use "
                "--substitution null"
            )
        self.logs = tuple(f"server_{index}_clients" for index in range(federation.topology.num_servers))

    def on_propose(self, round: Round) -> None:
        """Send the servers' models to all clients that are active, which start from the best; its server mixes them."""
        m, owners = round.num_clients, round.jobs.owners
        references = self._choices(round.federation, owners)
        known, self._known = self._known_losses(round.federation), None
        if known is None or len(owners) < m:  # of some clients, sums may be rounded otherwise than of all
            losses = round.evaluate(references).losses
        else:
            round.charge(references)
            losses = known
        servers = torch.arange(m, round.num_nodes)
        chosen = m + best_server(losses.view(len(owners), len(servers)))
        round.jobs = References((Term("models", chosen),), owners, "models")
        round.candidates = Links.of(chosen, owners, round.num_nodes).intersection(round.available)
        for name, server in zip(self.logs, servers.tolist(), strict=True):
            round.log(name, int((chosen == server).sum()))

    def on_select(self, round: Round) -> None:
        """Select at each server the clients that chose it."""
        round.selected = round.candidates

    def assign(self, federation: Federation, owners: Tensor) -> Tensor:
        """Return the best server of each client, by the present models and the clients' training data.

        Losses of all clients are kept: the next round chooses by the same models.
        """
        references = self._choices(federation, owners)
        every = len(owners) == federation.num_clients
        losses = self._known_losses(federation) if every else None
        if losses is None:
            losses = federation.engine.evaluate(references, "train").losses
        if every:
            boundary = federation.bank.boundary
            self._known = (boundary.round, boundary.rows["models"], losses.view(len(owners), -1))
        return best_server(losses.view(len(owners), -1))

    @staticmethod
    def _choices(federation: Federation, owners: Tensor) -> References:
        """Each server's model on each client's data, one client's after the other's."""
        m, c = federation.num_clients, federation.topology.num_servers
        return References.rows("models", torch.arange(m, m + c).repeat(len(owners)), owners.repeat_interleave(c))

    def _known_losses(self, federation: Federation) -> Tensor | None:
        """The losses of all clients' choices at the present boundary, float64 [m * c]; None: not known yet."""
        boundary, known = federation.bank.boundary, self._known
        if known is None or known[0] != boundary.round or known[1] is not boundary.rows["models"]:
            return None
        return known[2].flatten()
