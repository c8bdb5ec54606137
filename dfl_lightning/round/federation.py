"""The federation: the data, topology, network and policies of a run, which are the same in all rounds."""

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
from dfl_lightning.engines.optimizing.own_training import OwnTraining
from dfl_lightning.links import AllPairs
from dfl_lightning.round.run.horizon import Horizon, calling
from dfl_lightning.tasks import Classification, Task
from dfl_lightning.topology import Topology
from dfl_lightning.topology.clusters import differing_pair
from dfl_lightning.utils.errors import UserError
from dfl_lightning.utils.memory import machine_memory, size

P = TypeVar("P")

JOINED = "_joined"
"""The number of each client in the bank that is 1 once it has trained, if clients start from their neighbours."""

LINK_BYTES = 400
"""Measured peak memory per link of a round in which a selection looks at every link."""

_INSTEAD = {
    "selection": ", or --selection Gossip",
    "aggregation": ", or --aggregation Uniform",
    "objective": ", or --objective Plain",
}
"""Remedies for a policy or objective that does not work with servers, by its family."""


class Participant(Protocol):
    """The declarations of a policy or monitor that a run reads; see `RoundCallback`, which has them all."""

    family: str
    row_sets: Mapping[str, str]
    reports: str | None
    logs: tuple[str, ...]
    supports_servers: bool
    supports_clock: bool
    against_clock: str
    needs_classes: bool
    averages_prototypes: bool
    is_asynchronous: bool

    @property
    def state_key(self) -> str:
        """The key of the participant's state in a checkpoint."""

    @property
    def changes_messages(self) -> bool:
        """True if it changes what clients send."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore its state."""

    def start(self, federation: Federation) -> None:
        """Raise a `UserError` if it cannot work."""

    def listed_links(self, federation: Federation) -> int:
        """Return the number of links that a round lists for it."""

    def is_symmetric(self, federation: Federation) -> bool:
        """Return True if the mixing matrices of all rounds are symmetric."""

    def eigenvalues(self, federation: Federation) -> Tensor | None:
        """Return the eigenvalues of a constant mixing matrix, float64 [n]."""

    def describe(self, federation: Federation) -> str | None:
        """Return its line of the banner."""


class LocalObjective(Protocol):
    """The declarations of an objective that a run reads; see `Objective`, which has them all."""

    family: str
    row_sets: Mapping[str, str]
    reports: str | None
    logs: tuple[str, ...]
    supports_servers: bool
    supports_clock: bool
    against_clock: str
    needs_classes: bool
    keeps_models: bool
    kept: Sequence[int]

    def start(self, federation: Federation) -> None:
        """Raise a `UserError` if it cannot work."""

    def phases(self, layout: Layout, duration: Duration, round: int) -> tuple[Phase, ...]:
        """Return the local work of a round."""


@dataclass(frozen=True)
class LocalTraining:
    """The settings of local training that do not depend on the objective.

    Args:
        duration: length of a client's training in a round: `model.local_epochs` or `model.local_steps`.
        batch_size: number of samples in a batch, in round 0 if batches grow; see `batch_size_in`.
        optimizer: the user's optimizer of one client.
        scheduled: options of the optimizer, in addition to `lr`, that change from round to round.
        clipped: True if gradients are clipped.
        memory: row sets of the bank that keep the states of the clients' optimizers; None: optimizers begin anew in
            every round.
        rates: each client's learning rate, before any schedule; None: all have that of the optimizer.
        durations: each client's length of training; None: all have `duration`.
        batch_growth: number of samples that batches gain from each round to the next.
        largest_client: number of samples of the largest client, beyond which batches do not grow.
    """

    duration: Duration
    batch_size: int
    optimizer: ClientOptimizer
    scheduled: tuple[str, ...]
    clipped: bool
    memory: OptimizerMemory | None = None
    rates: tuple[float, ...] | None = None
    durations: tuple[Duration, ...] | None = None
    batch_growth: int = 0
    largest_client: int = 1

    def batch_size_in(self, round: int) -> int:
        """Return the number of samples in a batch of a round, 0-based."""
        return min(self.batch_size + self.batch_growth * round, max(self.batch_size, self.largest_client))

    def later_batch_sizes(self, rounds: int | None) -> tuple[int, ...]:
        """Return the sizes of batches after round 0, each once; empty if batches do not grow.

        Args:
            rounds: number of rounds; None: as many as it takes until batches no longer grow.

        Examples:
            >>> local = LocalTraining(Duration(1), 5, None, (), False, batch_growth=5, largest_client=18)
            >>> local.later_batch_sizes(3), local.later_batch_sizes(None)
            ((10, 15), (10, 15, 18))
        """
        if not self.batch_growth:
            return ()
        until = -(-max(0, self.largest_client - self.batch_size) // self.batch_growth)
        last = until if rounds is None else min(until, rounds - 1)
        return tuple(self.batch_size_in(round) for round in range(1, last + 1))

    def duration_of(self, client: int) -> Duration:
        """Return the length of a client's training in a round."""
        return self.duration if self.durations is None else self.durations[client]


@dataclass
class Federation:
    """The data, topology, network and policies of a run. Policies and objectives get it in `start` and in every round.

    Args:
        data: the clients' resident data.
        topology: the links; its nodes are the m clients and, after them, servers.
        network: the plain network; its own parameters belong to no client.
        layout: columns of a model's row.
        clusters: long [m], known from the data or the topology; None: unknown.
        seed: the run's seed; draws are named, see `Round.generator`.
        init: initial models, `model.init`: `common`, `independent`, or a file.
        planned_rounds: number of rounds; None: only a signal or early stopping ends the run. It serves messages,
            checks and memory plans; code whose results depend on the number must read `num_rounds`.
        objective: the local training rule.
        local: the settings of local training that do not depend on the objective.
        policies: the policies that take part, in the order of their calls.
        remarks: sentences for the banner.
        task: the meaning of the network's outputs, and the score that models are judged with.
        per_client: numbers of each client by name (`model.per_client`), as a resume compares them; or None.

    Attributes:
        bank: the clients' models; available from the first round on, not yet in `start`.
        engine: the engine that trains and evaluates them; available from the first round on.
        horizon: the policies and objectives that have read the number of rounds; see `Horizon`.
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
    per_client: dict[str, list[float | None]] | None = None
    bank: Bank = field(init=False, repr=False)
    engine: Engine = field(init=False, repr=False)
    horizon: Horizon = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Create the record of reads of the number of rounds."""
        self.horizon = Horizon(self.planned_rounds)

    @property
    def num_rounds(self) -> int | None:
        """The number of rounds. If a policy or objective reads it, the run cannot be resumed with another number.

        Raises:
            UserError: the run was begun with another number; see `Horizon`.
        """
        self.horizon.notice(calling((*self.policies, self.objective)))
        return self.planned_rounds

    @property
    def num_clients(self) -> int:
        """The number of clients, m."""
        return self.data.num_clients

    @property
    def num_nodes(self) -> int:
        """The number of clients and servers, n."""
        return self.topology.num_nodes

    @property
    def num_servers(self) -> int:
        """The number of servers in the topology, c."""
        return self.topology.num_servers

    @property
    def servers_have_models(self) -> bool:
        """True if there are servers with models that clients start a round from."""
        return self.num_servers > 0 and not self.objective.keeps_models

    @property
    def has_global_model(self) -> bool:
        """True if a single server has a complete model, and there is a global test set to evaluate it on."""
        one = self.num_servers == 1 and self.servers_have_models and not self.layout.has_personal_parameters
        return one and self.data.global_test is not None

    @property
    def joins(self) -> bool:
        """True if clients that train for the first time start from the mean of their neighbours' models."""
        ways = [getattr(policy, "join", "own") for policy in self.policies]
        return "neighbours" in (self.topology.join, *ways)

    @property
    def common_start(self) -> bool:
        """True if all clients begin the run with the same model, which is then known to all."""
        return self.init != "independent"

    def policy(self, family: type[P]) -> P | None:
        """Return the run's policy of this family; None if it has none."""
        return next((policy for policy in self.policies if isinstance(policy, family)), None)

    def require(self, family: type[P]) -> P:
        """Return the run's policy of a family that every run has: `Selection` or `Aggregation`."""
        return next(policy for policy in self.policies if isinstance(policy, family))

    def require_validation(self, who: str) -> None:
        """Raise if a client has no validation data.

        Args:
            who: the policy or objective that needs the data: a family and a name.

        Raises:
            UserError: names a client without validation data, and the remedy.
        """
        without = torch.nonzero(self.data.sizes("val") == 0).squeeze(1).tolist()
        if without:
            raise UserError(
                f"{who} evaluates models on validation data, and client {without[0]} has none; set "
                "data.val_fraction, for example --data.val_fraction 0.2"
            )

    def remark(self, sentence: str) -> None:
        """Add a sentence that the banner shows before the first round; each sentence is shown once."""
        if sentence not in self.remarks:
            self.remarks.append(sentence)

    def start(self) -> None:
        """Let every policy and the objective check that they can work in this run.

        Raises:
            UserError: one of them cannot work, for example because it needs neighbours and there are servers, or the
                list of links would need more memory than the machine has.
        """
        for policy in self.policies:
            self._refuse_servers(policy)
            self._refuse_clock(policy)
            policy.start(self)
        self._refuse_servers(self.objective)
        self._refuse_clock(self.objective)
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
            raise UserError(
                f"{user.family} {type(user).__name__} is for clients with neighbours, and a server has none; "
                f"use a topology without servers{_INSTEAD.get(user.family, '')}"
            )

    @property
    def is_asynchronous(self) -> bool:
        """True if clients do not wait for each other."""
        return any(policy.is_asynchronous for policy in self.policies)

    def _refuse_clock(self, user: Participant | LocalObjective) -> None:
        if self.is_asynchronous and not user.supports_clock:
            why = f": {user.against_clock}" if user.against_clock else ""
            raise UserError(
                f"{user.family} {type(user).__name__} does not support clients that do not wait for each other{why}; "
                f"use another {user.family}, or leave out the clock with --clock null"
            )

    @property
    def reported_rows(self) -> str:
        """The row set with which clients are evaluated: `models`, or one that a policy or the objective names."""
        named = [policy.reports for policy in self.policies] + [self.objective.reports]
        return next((name for name in named if name), "models")

    def phases(self, round: int) -> tuple[Phase, ...]:
        """Return the phases of local training in a round, 0-based."""
        return self.objective.phases(self.layout, self.local.duration, round)

    def own_training(self, round: int) -> OwnTraining | None:
        """Return the numbers of local training that differ between clients in a round; None if there are none."""
        local = self.local
        if local.rates is None and local.durations is None:
            return None
        base = float(local.optimizer.hyperparameters[0]["lr"])
        phases = {
            duration: self.objective.phases(self.layout, duration, round) for duration in set(local.durations or ())
        }
        return OwnTraining(local.rates, base, local.durations, phases)

    def row_sets(self, objectives: Iterable[LocalRule]) -> dict[str, str]:
        """Collect the declared row sets, with their initial values by name.

        Args:
            objectives: the objectives of the phases.
        """
        wanted: dict[str, str] = {}
        for policy in self.policies:
            wanted |= policy.row_sets
        for objective in objectives:
            wanted |= objective.row_sets
        return wanted | ({} if self.local.memory is None else self.local.memory.row_sets)

    def numbers(self, objectives: Iterable[LocalRule]) -> dict[str, float]:
        """Collect the declared numbers of clients, with their initial values by name.

        Args:
            objectives: the objectives of the phases.
        """
        declared = {name: value for objective in objectives for name, value in objective.numbers.items()}
        declared |= {JOINED: 0.0} if self.joins else {}
        return declared | ({} if self.local.memory is None else self.local.memory.numbers)

    def server_of(self, clients: Tensor) -> Tensor:
        """Return the node whose model each of the clients starts a round from, long: the first server, or itself."""
        return torch.full_like(clients, self.num_clients) if self.servers_have_models else clients

    def start_of_training(self, active: Tensor) -> References:
        """Refer to the models that active clients start their training from.

        A client starts from its own model, or from the server's model with its own personal parameters.

        Args:
            active: bool [n] or [m].
        """
        owners = torch.nonzero(active[: self.num_clients]).squeeze(1)
        return References((Term("models", self.server_of(owners)),), owners, "models")


def listed_links(federation: Federation) -> int:
    """Return the number of links that a round lists: all links, or in a complete graph those that policies ask for."""
    links = federation.topology.linked(0)
    if not isinstance(links, AllPairs):
        return len(links)
    return max(policy.listed_links(federation) for policy in federation.policies)


def agreeing_clusters(from_data: Tensor | None, topology: Topology) -> Tensor | None:
    """Return the clusters that the data or the topology's nodes define; if both do, they must group clients alike.

    Args:
        from_data: cluster of each client, long [m]; None: unknown.
        topology: the topology; its nodes may have clusters.

    Raises:
        UserError: the two disagree about a pair of clients.
    """
    from_topology = topology.clusters
    if from_data is None or from_topology is None:
        return from_topology if from_data is None else from_data
    pair = differing_pair(from_data, from_topology)
    if pair is not None:
        i, j = pair
        raise UserError(
            "the topology's 'cluster' attributes and data.partition disagree: "
            f"clients {i} and {j} share a cluster in one of them only; "
            "drop the attribute or change the partition"
        )
    return from_data
