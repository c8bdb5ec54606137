"""The fields of a communication round, and the values that follow from them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from dfl_lightning.bank.bank import Bank
from dfl_lightning.bank.references import References
from dfl_lightning.data import ClientData
from dfl_lightning.engines.jobs import Training
from dfl_lightning.engines.local_work import Phase
from dfl_lightning.engines.optimizing.optimizers import Hyperparameters
from dfl_lightning.engines.optimizing.own_training import OwnTraining
from dfl_lightning.links import LinkMemory, Links
from dfl_lightning.round.federation import Federation
from dfl_lightning.round.ledger import Ledger
from dfl_lightning.round.written import Written
from dfl_lightning.utils.errors import UserError
from dfl_lightning.utils.randomness.random_streams import stream, stream_seed
from dfl_lightning.utils.words import nth_round


@dataclass
class SubstituteRows:
    """A row set whose rows may be mixed instead of clients' trained models.

    Args:
        rows: name of the row set; its first m rows are the substitutes of the m clients.
        relative: True if the rows are updates, which are added to the receiver's own model.
    """

    rows: str
    relative: bool


@dataclass(frozen=True)
class PublishedModels:
    """The models that clients have published before the present wave, on an asynchronous clock.

    Args:
        rows: names of the row sets that hold them: the last model of each client, the one before, and so on.
        instants: simulated time at which each was published, in nanoseconds, long [len(rows), m]; -1: there is none.
        travel: a function of receivers and senders, long [e] each, that returns the time in which a sender's model
            reaches a receiver, in nanoseconds, long [e]; None: receivers fetch models, and wait for them.
    """

    rows: tuple[str, ...]
    instants: Tensor
    travel: Callable[[Tensor, Tensor], Tensor] | None = None


@dataclass(frozen=True)
class WaveRecord:
    """The numbers of a wave that has ended, which its round keeps.

    Args:
        metrics: logged numbers by name.
        costs: columns of the ledger by name.
        losses: sum of local training losses, and number of clients that trained.
        clients: number of clients that took part.
        diverged: number of clients whose training diverged.
    """

    metrics: dict[str, float]
    costs: dict[str, float]
    losses: tuple[float, int]
    clients: int
    diverged: int


@dataclass(repr=False, eq=False)
class RoundFields:
    """One communication round, which the protocol creates, the hooks fill from top to bottom, and is then discarded.

    Args:
        index: the 0-based round.
        federation: the data, topology, network and policies of the run.
        reachable: the in-neighbours of each node, as links.
        active: mask of the active nodes, bool [n]; servers always are.
        available: the links that a node may choose from: those of `reachable` whose sender is active, or, if a
            substitution replaces inactive clients, all of them.
        receivers: mask of the nodes that mix in this round, bool [n]: the active clients, or the servers.
        jobs: the model that each active client's local training starts from; default: its own, or its server's.
        candidates: the links of `available` whose senders a node looks at before it selects some of them.
        phases: the phases of each client's local training.
        hyperparameters: for each of the optimizer's groups, the learning rate and other options that a schedule
            changed.
        own: numbers of local training that differ between clients; None if all train alike. If a hook replaces
            `phases`, clients train for as long as these say.
        losses: mean local training loss of each client, float64 [m]; NaN for clients that did not train.
        diverged: clients whose training ended in NaN or infinity, bool [m].
        similarity: similarity of each candidate to its receiver, float64 [len(candidates)]; NaN if unknown.
        scores: the score of each candidate, float64 [len(candidates)], NaN if unknown; higher is better, and 1 is an
            average neighbour.
        own_scores: each node's score of itself, float64 [n], if the selection computes one.
        threshold: the lowest score at which a node selects a candidate, float64 [n]; None: no threshold.
        selected: the links whose models would be mixed if all clients were active.
        substitute: the row that is mixed for each selected sender, long [len(selected)]: the sender's own, another
            client's, one of `substitute_rows` (from n on), or -1: the mean of the active senders that the receiver
            selected.
        substitute_rows: row sets of a substitution, whose rows may be mixed in addition to those of nodes.
        likeness: similarities of clients as a substitution measures them, for the links that it has compared.
        voters: the rows that each receiver may mix, as links; its own row is included even without a vote.
        votes: the number of votes of each of `voters`, float64 [len(voters)].
        weights: entries of the mixing matrix W at `voters`, float64 [len(voters)].
        metrics: the numbers of this round's row of `metrics.csv`.

        due: clients whose local training ends in this wave, bool [n]; without an asynchronous clock all clients.
        cycles: number of each client's own training, long [m], which names its draws; None: the round names them.
        instants: simulated time at which each client's training ends, in nanoseconds, long [m]; only with an
            asynchronous clock.
        published: the models that clients receive from those that have not finished in this wave yet; None: models of
            the round are all that there are, as without an asynchronous clock.
        age: age of the model that each selected link brings, in seconds, float64 [E]; only with an asynchronous clock.
        earlier: the waves of this round before the present one.

    Attributes:
        ledger: the messages that were received in this round.
        joining: the links to clients that train for the first time, from neighbours whose mean they start from.
    """

    index: int
    federation: Federation
    reachable: Links
    active: Tensor
    available: Links
    receivers: Tensor
    jobs: References
    candidates: Links
    phases: tuple[Phase, ...]
    hyperparameters: Hyperparameters
    own: OwnTraining | None = None
    losses: Written[Tensor] = Written("local training")
    diverged: Written[Tensor] = Written("local training")
    similarity: Written[Tensor] = Written("on_compare")
    scores: Written[Tensor] = Written("on_compare")
    own_scores: Written[Tensor] = Written("on_compare")
    threshold: Tensor | None = None
    selected: Written[Links] = Written("on_select")
    substitute: Written[Tensor] = Written("the round after on_select")
    substitute_rows: list[SubstituteRows] = field(default_factory=list)
    likeness: LinkMemory | None = None
    voters: Written[Links] = Written("the round after on_substitute")
    votes: Written[Tensor] = Written("the round after on_substitute")
    weights: Written[Tensor] = Written("on_weigh")
    metrics: dict[str, float] = field(default_factory=dict)
    due: Tensor = field(default_factory=lambda: torch.ones((), dtype=torch.bool))
    cycles: Tensor | None = None
    instants: Written[Tensor] = Written("on_clock")
    published: PublishedModels | None = None
    age: Written[Tensor] = Written("on_substitute")
    earlier: tuple[WaveRecord, ...] = ()
    ledger: Ledger = field(init=False)
    joining: Links = field(init=False)

    def __post_init__(self) -> None:
        self.ledger, self.joining = Ledger(self.num_nodes), Links.empty(self.num_nodes)
        self._planned = self.phases

    def __repr__(self) -> str:
        """Show the round's index and the fields that have a value so far."""
        hidden = ("index", "federation", "_planned")
        written = ", ".join(name for name in vars(self) if self.has(name) and name not in hidden)
        return f"Round({self.index}: {written})"

    def has(self, field: str) -> bool:
        """Return True if a field has a value; it has none until the hook that writes it has run."""
        return vars(self).get(field) is not None

    # --- small helpers -----------------------------------------------------------------------------------------------
    @property
    def num_clients(self) -> int:
        """The number of clients, m."""
        return self.federation.num_clients

    @property
    def num_nodes(self) -> int:
        """The number of clients and servers, n."""
        return self.federation.num_nodes

    @property
    def num_servers(self) -> int:
        """The number of servers in the topology, c."""
        return self.federation.num_servers

    @property
    def bank(self) -> Bank:
        """The clients' models."""
        return self.federation.bank

    @property
    def data(self) -> ClientData:
        """The clients' resident data."""
        return self.federation.data

    @property
    def clusters(self) -> Tensor | None:
        """The clients' ground-truth clusters, long [m]; None if unknown."""
        return self.federation.clusters

    @property
    def has_messages(self) -> bool:
        """True if a policy changes what clients send."""
        return any(policy.changes_messages for policy in self.federation.policies)

    @property
    def row_owner(self) -> Tensor:
        """The node that each row belongs to, long [P], for the P rows that `voters.senders` indexes."""
        clients = torch.arange(self.num_clients)
        return torch.cat([torch.arange(self.num_nodes), *[clients] * len(self.substitute_rows)])

    @property
    def dropped(self) -> Tensor:
        """Clients that are due and not active in this round, bool [m]."""
        return (self.due & ~self.active)[: self.num_clients]

    @property
    def participants(self) -> Tensor:
        """Clients that trained this round and did not diverge, bool [m]."""
        trained = torch.zeros(self.num_clients, dtype=torch.bool)
        trained[self.jobs.owners] = True
        return trained & self.active[: self.num_clients]

    @property
    def lr(self) -> float:
        """The round's learning rate; if the optimizer has several groups, that of the first one.

        Raises:
            UserError: clients have their own learning rates.
        """
        if self.own is not None and self.own.rates is not None:
            raise UserError(
                f"{nth_round(self.index)}: a policy or objective computes with one learning rate for all clients; "
                "leave the column lr out of model.per_client"
            )
        return float(self.hyperparameters[0]["lr"])

    @property
    def own_training(self) -> OwnTraining | None:
        """The numbers that differ between clients in this round's training; lengths only if no hook set `phases`."""
        return self.own if self.own is None or self.phases is self._planned else self.own.without_durations()

    def phases_of(self, client: int) -> tuple[Phase, ...]:
        """Return the phases of a client's local training in this round."""
        own = self.own_training
        return self.phases if own is None else own.phases_of(client, self.phases)

    @property
    def batch_size(self) -> int:
        """The number of samples in a batch of this round."""
        return self.federation.local.batch_size_in(self.index)

    def local_training(self, **more: Any) -> Training:
        """Describe local training with this round's phases, optimizer options and batch size, for the engine.

        Args:
            **more: further fields of `Training`.
        """
        return Training("local", self.index, self.phases, self.hyperparameters, batch_size=self.batch_size, **more)

    def generator(self, purpose: str, *words: int) -> torch.Generator:
        """Return a generator for a named draw of this round; see `dfl_lightning.utils.randomness.random_streams`.

        Args:
            purpose: name of what is drawn; draws of different names are independent.
            *words: further numbers that the draw depends on, for example a client's id.
        """
        return stream(self.federation.seed, purpose, self.index, *words)

    def client_generator(self, purpose: str, client: int, *words: int) -> torch.Generator:
        """Return a generator for a named draw of one client, named by the number of its own training.

        Without an asynchronous clock this number is the round's, so the draws are those of
        `generator(purpose, client, *words)`.

        Args:
            purpose: name of what is drawn; draws of different names are independent.
            client: the client's id.
            *words: further numbers that the draw depends on.
        """
        number = self.index if self.cycles is None else int(self.cycles[client])
        return stream(self.federation.seed, purpose, number, client, *words)

    def draw_links(self, links: Links, k: int | Tensor, purpose: str, *words: int) -> Links:
        """Choose k links of each receiver at random, every set of k equally likely; all of them if it has at most k.

        A link's draw depends only on the seed, the round, the purpose, the words and the two nodes of the link. It does
        not change if other links are added or removed.

        Args:
            links: the links to choose from.
            k: number of links, for all receivers or for each node, long [n].
            purpose: name of what is drawn; draws of different names are independent.
            *words: further numbers that the draw depends on.
        """
        return links.draw(k, self._seeds(purpose, *words))

    def draw_uniform(self, links: Links, purpose: str, *words: int) -> Tensor:
        """Draw a number in [0, 1) for each link, float64 [E]; it depends on the same things as in `draw_links`.

        Args:
            links: the links that get a number.
            purpose: name of what is drawn; draws of different names are independent.
            *words: further numbers that the draw depends on.
        """
        return links.uniform(self._seeds(purpose, *words))

    def _seeds(self, purpose: str, *words: int) -> int | Tensor:
        """Return the seed of a named draw: one for all nodes, or one for each, long [n], by its own training."""
        seed = self.federation.seed
        if self.cycles is None:
            return stream_seed(seed, purpose, self.index, *words)
        seeds = torch.zeros(self.num_nodes, dtype=torch.long)
        numbers, index = self.cycles.unique(return_inverse=True)
        of_numbers = [stream_seed(seed, purpose, number, *words) for number in numbers.tolist()]
        seeds[: self.num_clients] = torch.tensor(of_numbers)[index]
        return seeds

    @property
    def clients_only(self) -> Tensor:
        """A mask of the nodes that are clients, bool [n]."""
        return torch.arange(self.num_nodes) < self.num_clients

    def log(self, name: str, value: float) -> None:
        """Log a number for this round's row of `metrics.csv` and the loggers.

        Args:
            name: name of the column.
            value: the round's number.
        """
        self.metrics[name] = float(value)
