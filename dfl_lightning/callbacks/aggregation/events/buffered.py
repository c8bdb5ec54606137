"""A server that does not wait for its clients: FedBuff and FedAsync."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

import torch

from dfl_lightning.bank.references import Weights
from dfl_lightning.callbacks.aggregation.events.events import (
    GIVEN,
    STARTS,
    CurrentModels,
    at_nodes,
    clients_in_order,
)
from dfl_lightning.callbacks.base import Selection
from dfl_lightning.functional import BufferedServer, buffered_coefficients, uniform_weights
from dfl_lightning.links import Links
from dfl_lightning.round.record import Round
from dfl_lightning.utils.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

    from dfl_lightning.round.federation import Federation

BUFFER = "buffer"
"""Row set whose row of the server holds the sum of contributions since its last step."""


class Buffered(CurrentModels):
    """A server that takes a step after every `k` contributions of any clients (FedBuff, FedAsync).

        b <- b + s_i (y_i - z_i),    s_i = (1 + t_i)^-power;    after k contributions: x <- x + step / k * b,  b <- 0

    Client i has trained model y_i from the server's model z_i of t_i steps ago. When its contribution has arrived, it
    takes the server's model and starts again. This is FedBuff (Nguyen et al. 2022, arXiv 2106.06639). FedAsync (Xie,
    Koyejo and Gupta 2019, arXiv 1903.03934) is `k: 1` and `contribution: model`: x <- (1 - step s_i) x + step s_i y_i.
    With a larger k, the step goes towards the models of the buffer: x <- x + step / k * sum over i of s_i (y_i - x).

    All clients train all the time, so as many updates are under way as there are clients. A client waits for its upload
    and then for its download. Both are charged; the first model is known to all. Contributions that arrive at one
    instant are taken in the order of the clients' ids.

    It needs memory for two further models of each client.

    Args:
        k: contributions per step of the server, 1 or more.
        step: length of the server's step, above 0.
        power: exponent of the factor of old contributions, 0 or more; 0 counts all alike.
        contribution: `update`: the change of a client's training; `model`: the trained model.
    """

    method_name = "FedBuff"
    state = ("version", "filled", "mass", "started")
    logs = ("versions_behind",)
    row_sets = {STARTS: "models", BUFFER: "zeros"}

    def __init__(
        self,
        k: int = 10,
        step: float = 1.0,
        power: float = 0.5,
        contribution: Literal["update", "model"] = "update",
    ) -> None:
        if k < 1:
            raise UserError(f"aggregation.k={k}; it is a number of contributions, 1 or more")
        if not 0 < step < math.inf:
            raise UserError(f"aggregation.step={step}; it is the length of the server's step, above 0")
        if not 0 <= power < math.inf:
            raise UserError(f"aggregation.power={power}; it is a number, 0 or more")
        if contribution not in ("update", "model"):
            raise UserError(f"aggregation.contribution={contribution!r}; it is update or model")
        self.k, self.step, self.power, self.contribution = k, step, power, contribution
        if k == 1 and contribution == "model":
            self.method_name = "FedAsync"
        self.version, self.filled, self.mass = 0, 0, 0.0
        self.started: Tensor = torch.zeros(0, dtype=torch.long)

    def start(self, federation: Federation) -> None:
        """Require a clock, one server with a model, one first model, and all clients."""
        super().start(federation)
        if federation.num_servers != 1 or not federation.servers_have_models:
            raise UserError(
                "aggregation Buffered needs one server, whose model all clients train; use --topology server, and an "
                "objective that averages models"
            )
        if not federation.common_start:
            raise UserError(
                "aggregation Buffered: clients start from the server's first model; use --model.init common"
            )
        selection = federation.require(Selection)
        if selection.lists_candidates or selection.k != "all" or federation.topology.budgets is not None:
            raise UserError(
                "aggregation Buffered takes what each client sends when it has finished; use --selection Gossip "
                "--selection.k all"
            )
        self.version, self.filled, self.mass = 0, 0, 0.0
        self.started = torch.zeros(federation.num_clients, dtype=torch.long)

    def awaited(self, round: Round) -> Links:
        """Return the links over which the clients of the wave receive the server's model."""
        clients = clients_in_order(round).sort().values
        return Links.of(clients, torch.full_like(clients, round.num_clients), round.num_nodes)

    def on_weigh(self, round: Round) -> None:
        """Write equal weights of the wave's contributions."""
        round.weights = uniform_weights(round.votes, round.voters)

    def on_mix(self, round: Round) -> None:
        """Walk through the events, and write the server's model, its buffer, and where clients start again."""
        bank, m, n = round.bank, round.num_clients, round.num_nodes
        clients, server = clients_in_order(round), torch.tensor([m])
        trained = round.participants[clients]
        bank.scratch(GIVEN)
        givers = clients[trained].sort().values
        if self.contribution == "update":
            bank.combine(torch.sub, ["trained", STARTS], GIVEN, givers, only_reads=True)
        else:
            bank.combine(lambda rows: rows, ["trained"], GIVEN, givers, only_reads=True)
        before = BufferedServer(self.version, self.filled, self.mass)
        of_models = self.contribution == "model"
        walk = buffered_coefficients(
            self.started[clients], trained, before, self.k, self.step, self.power, of_models=of_models
        )

        def terms(coefficients: Tensor) -> list[tuple[Weights, str]]:
            return [
                (at_nodes(coefficients[:, :1], server, n), "models"),
                (at_nodes(coefficients[:, 1:2], server, n), BUFFER),
                (at_nodes(coefficients[:, 2:], clients, n), GIVEN),
            ]

        bank.mix(terms(walk.after), STARTS, clients)
        bank.mix(terms(walk.model[None]), "models", server)
        bank.mix(terms(walk.buffer[None]), BUFFER, server)
        self.version, self.filled, self.mass = walk.server.version, walk.server.filled, walk.server.mass
        self.started = self.started.clone()
        self.started[clients] = walk.versions
        if bool(trained.any()):
            round.log("versions_behind", float(walk.behind[trained].double().mean()))
            round.ledger.fetch(torch.full_like(clients[trained], m), clients[trained], mixed=True)
        self._charge_downloads(round, clients)

    def start_again(self, round: Round, clients: Tensor) -> None:
        """Let the clients, long [e], take the server's model after a wave in which no client has trained."""
        m, n = round.num_clients, round.num_nodes
        first = Weights.of_rows(torch.full((len(clients),), m), n)
        round.bank.mix([(first, "models")], STARTS, clients)
        self.started = self.started.index_fill(0, clients, self.version)
        self._charge_downloads(round, clients)

    def _charge_downloads(self, round: Round, clients: Tensor) -> None:
        round.ledger.fetch(clients, torch.full_like(clients, round.num_clients))
