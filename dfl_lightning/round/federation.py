"""What is fixed for a run: data, topology, network and policies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn

from dfl_lightning.bank.bank import Bank
from dfl_lightning.bank.layout import Layout
from dfl_lightning.bank.references import References, Term
from dfl_lightning.data import ClientData
from dfl_lightning.engines.engine import Engine
from dfl_lightning.engines.local_work import Duration, LocalRule, Phase
from dfl_lightning.engines.optimizing.optimizer_memory import OptimizerMemory
from dfl_lightning.engines.optimizing.optimizers import ClientOptimizer
from dfl_lightning.links import AllPairs
from dfl_lightning.round.run.horizon import Horizon, calling
from dfl_lightning.tasks import Classification, Task
from dfl_lightning.topology import Topology
from dfl_lightning.topology.clusters import differing_pair
from dfl_lightning.utils.errors import UserError
from dfl_lightning.utils.memory import machine_memory, size

P = TypeVar("P")

LINK_BYTES = 400
"""What a link takes at the peak of a round in which a selection looks at it, as measured."""

_INSTEAD = {
    "Selection": ", or --selection Gossip",
    "Aggregation": ", or --aggregation Uniform",
    "Objective": ", or --objective Plain",
}
"""What works with servers, by the family of what does not."""


class Participant(Protocol):
    """The declarations of a policy or monitor that a run reads; see `RoundCallback`, which has them all."""

    row_sets: Mapping[str, str]
    reports: str | None
    logs: tuple[str, ...]
    supports_servers: bool
    needs_classes: bool
    averages_prototypes: bool

    @property
    def state_key(self) -> str:
        """The key of its state in a checkpoint."""

    @property
    def changes_messages(self) -> bool:
        """Whether it changes what clients send."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore its state."""

    def start(self, federation: Federation) -> None:
        """Raise a `UserError` if it cannot work."""

    def listed_links(self, federation: Federation) -> int:
        """Return how many links a round lists for it."""

    def is_symmetric(self, federation: Federation) -> bool:
        """Return True if the mixing matrices of all rounds are symmetric."""

    def eigenvalues(self, federation: Federation) -> Tensor | None:
        """Return the eigenvalues of a constant mixing matrix, float64 [n]."""

    def describe(self, federation: Federation) -> str | None:
        """Return its line of the banner."""


class LocalObjective(Protocol):
    """The declarations of an objective that a run reads; see `Objective`, which has them all."""

    row_sets: Mapping[str, str]
    reports: str | None
    logs: tuple[str, ...]
    supports_servers: bool
    needs_classes: bool
    keeps_models: bool
    kept: Sequence[int]

    def start(self, federation: Federation) -> None:
        """Raise a `UserError` if it cannot work."""

    def phases(self, layout: Layout, duration: Duration, round: int) -> tuple[Phase, ...]:
        """Return the local work of a round."""


@dataclass(frozen=True)
class LocalTraining:
    """How clients train, whatever the objective.

    Args:
        duration: how long: `model.local_epochs` or `model.local_steps`.
        batch_size: samples of a batch.
        optimizer: the user's, for one client.
        scheduled: options of the optimizer, beside `lr`, that change from round to round.
        clipped: whether gradients are clipped.
        memory: where the bank keeps the states of the clients' optimizers; None: they begin anew in every round.
    """

    duration: Duration
    batch_size: int
    optimizer: ClientOptimizer
    scheduled: tuple[str, ...]
    clipped: bool
    memory: OptimizerMemory | None = None


@dataclass
class Federation:
    """What is fixed for a run; policies and objectives get it in `start`, and find it in every round.

    Args:
        data: the clients' resident data.
        topology: the links; its nodes are the m clients and, after them, servers.
        network: the plain network; its own parameters belong to no client.
        layout: columns of a model's row.
        clusters: long [m], known from the data or the topology; None where they are not.
        seed: the run's seed; draws are named, see `Round.stream`.
        init: how models start, `model.init`: `common`, `independent`, or a file.
        planned_rounds: rounds of the run; None where only a signal or early stopping ends it. For refusals and remarks;
            what decides a number of the run reads `num_rounds`.
        objective: the local training rule.
        local: how clients train, whatever the objective.
        policies: those that take part, in their order.
        remarks: sentences for the banner.
        task: what the network's outputs mean, and which number decides between models.

    Attributes:
        bank: the clients' models; there from the first round on, not yet in `start`.
        engine: what trains and scores them; likewise.
        horizon: by whom the number of rounds was read, and what it must have been: see `Horizon`.
    """

    data: ClientData
    topology: Topology
    network: nn.Module
    layout: Layout
    clusters: Tensor | None
    seed: int
    init: str
    planned_rounds: int | None
    objective: LocalObjective
    local: LocalTraining
    policies: tuple[Participant, ...] = ()
    remarks: list[str] = field(default_factory=list)
    task: Task = field(default_factory=Classification)
    bank: Bank = field(init=False, repr=False)
    engine: Engine = field(init=False, repr=False)
    horizon: Horizon = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Begin with a number of rounds that was not read yet."""
        self.horizon = Horizon(self.planned_rounds)

    @property
    def num_rounds(self) -> int | None:
        """Rounds of the run, noticed: a policy or objective that reads it makes another number another run.

        Raises:
            UserError: the run was begun with another number, see `Horizon`.
        """
        self.horizon.notice(calling((*self.policies, self.objective)))
        return self.planned_rounds

    @property
    def num_clients(self) -> int:
        """Clients, m."""
        return self.data.num_clients

    @property
    def num_nodes(self) -> int:
        """Clients and servers, n."""
        return self.topology.num_nodes

    @property
    def num_servers(self) -> int:
        """Servers in the topology, c."""
        return self.topology.num_servers

    @property
    def servers_have_models(self) -> bool:
        """Whether there are servers, from whose models clients start."""
        return self.num_servers > 0 and not self.objective.keeps_models

    @property
    def has_global_model(self) -> bool:
        """Whether one server has the model of all clients, and there are test data of all to evaluate it on."""
        one = self.num_servers == 1 and self.servers_have_models and not self.layout.has_personal_parameters
        return one and self.data.global_test is not None

    @property
    def common_start(self) -> bool:
        """Whether all clients begin the run with the same model, which all clients then know."""
        return self.init != "independent"

    def policy(self, family: type[P]) -> P | None:
        """The policy of a family that takes part, or None."""
        return next((policy for policy in self.policies if isinstance(policy, family)), None)

    def require(self, family: type[P]) -> P:
        """The policy of a family that every run has: its `Selection` and its `Aggregation`."""
        return next(policy for policy in self.policies if isinstance(policy, family))

    def require_validation(self, who: str) -> None:
        """Refuse clients without validation data.

        Args:
            who: measures models on it: a family and a name.

        Raises:
            UserError: a client has none.
        """
        without = torch.nonzero(self.data.sizes("val") == 0).squeeze(1).tolist()
        if without:
            raise UserError(
                f"{who} evaluates models on validation data, of which client {without[0]} has none; set "
                "data.val_fraction, for example --data.val_fraction 0.2"
            )

    def remark(self, sentence: str) -> None:
        """Something that a user should know before the first round, said in the banner, once."""
        if sentence not in self.remarks:
            self.remarks.append(sentence)

    def start(self) -> None:
        """Let every policy and the objective refuse what cannot work.

        Raises:
            UserError: by one of them, or because one needs neighbours and there are servers.
        """
        for policy in self.policies:
            self._refuse_servers(policy)
            policy.start(self)
        self._refuse_servers(self.objective)
        self.objective.start(self)
        self._refuse_long_lists()

    def _refuse_long_lists(self) -> None:
        links, memory = listed_links(self), machine_memory()
        needed = LINK_BYTES * links
        if memory is not None and needed > memory:
            policy = max(self.policies, key=lambda policy: policy.listed_links(self))
            raise UserError(
                f"{type(policy).__name__} looks at every link, and {self.num_clients:,} clients of a complete "
                f"graph have {links:,} links, for which a round needs about {size(needed)} of memory (this machine has "
                f"{size(memory)}); use a sparser graph, for example --topology partial, or --selection Gossip with a "
                "number as its k, which draws a few"
            )

    def _refuse_servers(self, user: Participant | LocalObjective) -> None:
        if self.num_servers and not user.supports_servers:
            families = {base.__name__ for base in type(user).__mro__} & set(_INSTEAD)
            family = min(families, default="Policy")
            raise UserError(
                f"{family.lower()} {type(user).__name__} is for clients with neighbours, and a server has none; "
                f"use a topology without servers{_INSTEAD.get(family, '')}"
            )

    @property
    def reported_rows(self) -> str:
        """The row set that clients are judged by: `models`, or one that a policy or the objective names."""
        named = [policy.reports for policy in self.policies] + [self.objective.reports]
        return next((name for name in named if name), "models")

    def phases(self, round: int) -> tuple[Phase, ...]:
        """The local work of a round, 0-based."""
        return self.objective.phases(self.layout, self.local.duration, round)

    def row_sets(self, objectives: Iterable[LocalRule]) -> dict[str, str]:
        """The declared row sets, by name, and their initial values.

        Args:
            objectives: those of the phases.
        """
        wanted: dict[str, str] = {}
        for policy in self.policies:
            wanted |= policy.row_sets
        for objective in objectives:
            wanted |= objective.row_sets
        return wanted | ({} if self.local.memory is None else self.local.memory.row_sets)

    def numbers(self, objectives: Iterable[LocalRule]) -> dict[str, float]:
        """The clients' numbers, by name, and their initial values.

        Args:
            objectives: those of the phases.
        """
        found = {name: value for objective in objectives for name, value in objective.numbers.items()}
        return found | ({} if self.local.memory is None else self.local.memory.numbers)

    def server_of(self, clients: Tensor) -> Tensor:
        """The node whose model each of the clients starts a round from, long: the first server, or itself."""
        return torch.full_like(clients, self.num_clients) if self.servers_have_models else clients

    def start_of_training(self, active: Tensor) -> References:
        """Where active clients start their training: their own model, or the server's with their personal part.

        Args:
            active: bool [n] or [m].
        """
        owners = torch.nonzero(active[: self.num_clients]).squeeze(1)
        return References((Term("models", self.server_of(owners)),), owners, "models")


def listed_links(federation: Federation) -> int:
    """Return how many links a round writes down: all of its graph, or of a complete one those that policies ask for.

    Args:
        federation: of the run.
    """
    links = federation.topology.linked(0)
    if not isinstance(links, AllPairs):
        return len(links)
    return max(policy.listed_links(federation) for policy in federation.policies)


def agreeing_clusters(from_data: Tensor | None, topology: Topology) -> Tensor | None:
    """The clusters known from the data or from the topology's nodes; if both are known, they must group clients alike.

    Args:
        from_data: cluster of each client, long [m]; None: not known.
        topology: its nodes may have clusters.

    Raises:
        UserError: the two disagree about a pair of clients.
    """
    other = topology.clusters
    if from_data is None or other is None:
        return other if from_data is None else from_data
    pair = differing_pair(from_data, other)
    if pair is not None:
        i, j = pair
        raise UserError(
            "the topology's 'cluster' attributes and data.partition disagree: "
            f"clients {i} and {j} share a cluster in one of them only; "
            "drop the attribute or change the partition"
        )
    return from_data
