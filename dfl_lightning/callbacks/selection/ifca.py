"""IFCA: several servers, and each client chooses the one whose model fits its data best."""

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
    """The choice of the server whose model has the lowest loss (IFCA, Ghosh et al., arXiv 2006.04088, algorithm 1).

        s_i = argmin over servers s of F_i(w_s)

    F_i is the loss on the training data of client i, which fetches the models of all servers to choose, trains that of
    server s_i, and returns it to this server, which averages. The number of servers is the topology's (`generator:
    server, args: {servers: 4}`), and their models must start different (`model.init: independent`). A server that no
    client chose keeps its model. A client is evaluated with the server's model that fits its training data best at that
    time.
    """

    k: Literal["all"] = "all"
    assigns_servers = True
    _known: tuple[int, Tensor, Tensor] | None = None
    """Index and models of a boundary, and the losses of these models for all clients; the next round may reuse them."""
    against_clock = "its servers wait for all clients"

    def start(self, federation: Federation) -> None:
        """Require servers with different models, and no substitution."""
        if not federation.topology.num_servers:
            raise UserError(
                "selection IFCA assigns clients to servers; use a topology with servers, as generator: server"
            )
        if federation.topology.num_servers > 1 and federation.init != "independent":
            raise UserError(
                "selection IFCA: servers that start with equal models stay equal, and with "
                f"model.init={federation.init} they do; set model.init to independent"
            )
        if federation.policy(Substitution) is not None:
            raise UserError(
                "selection IFCA does not know which server a client that dropped out would go to; use "
                "--substitution null"
            )
        self.logs = tuple(f"server_{index}_clients" for index in range(federation.topology.num_servers))

    def on_propose(self, round: Round) -> None:
        """Let each active client choose a server: its training starts from that model, and the server may mix it."""
        m, owners = round.num_clients, round.jobs.owners
        references = self._choices(round.federation, owners)
        known, self._known = self._known_losses(round.federation), None
        if known is None or len(owners) < m:  # losses of some clients may be rounded differently than those of all
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

        The losses of all clients are kept, since the next round evaluates the same models.
        """
        references = self._choices(federation, owners)
        of_all_clients = len(owners) == federation.num_clients
        losses = self._known_losses(federation) if of_all_clients else None
        if losses is None:
            losses = federation.engine.evaluate(references, "train").losses
        if of_all_clients:
            boundary = federation.bank.boundary
            self._known = (boundary.round, boundary.rows["models"], losses.view(len(owners), -1))
        return best_server(losses.view(len(owners), -1))

    @staticmethod
    def _choices(federation: Federation, owners: Tensor) -> References:
        """Refer to all servers' models on each client's data: those of the first client, then of the second, ..."""
        m, c = federation.num_clients, federation.topology.num_servers
        return References.rows("models", torch.arange(m, m + c).repeat(len(owners)), owners.repeat_interleave(c))

    def _known_losses(self, federation: Federation) -> Tensor | None:
        """Return the losses of all servers' models for all clients at the present boundary, float64 [m * c], or None.

        None means that they have not been computed.
        """
        boundary, known = federation.bank.boundary, self._known
        if known is None or known[0] != boundary.round or known[1] is not boundary.rows["models"]:
            return None
        return known[2].flatten()
