"""The vocabulary of a communication round: the `Round` record, its hooks, and what a round costs.

Row i is the receiver, column j the sender, ids are 0-based, everywhere. Nodes are the m clients and, in a server
topology, the servers after them (n nodes).
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch import Callback
from torch import Tensor

from dfl_lightning.bank.bank import Bank
from dfl_lightning.bank.layout import Columns
from dfl_lightning.bank.reducing import Reduce
from dfl_lightning.bank.references import References, Term, pairs_of
from dfl_lightning.bank.similarity import Comparison
from dfl_lightning.engines.jobs import Evaluation, Training
from dfl_lightning.engines.local_work import Phase
from dfl_lightning.engines.optimizers import Hyperparameters
from dfl_lightning.utils.errors import UserError
from dfl_lightning.utils.global_generators import name_of, no_global_draws
from dfl_lightning.utils.random_streams import stream

if TYPE_CHECKING:
    from dfl_lightning.data import ClientData
    from dfl_lightning.round.federation import Federation


BYTES = 4
"""Of a number in a message: messages are counted in float32, whatever the simulation computes in."""


@dataclass(frozen=True)
class Messages:
    """What went over the links of a round, an entry a link that was used.

    Attributes:
        receivers: long [e].
        senders: long [e].
        models: whole models, long [e].
        parts: other messages, long [e].
        bytes: of all of them, long [e].
    """

    receivers: Tensor
    senders: Tensor
    models: Tensor
    parts: Tensor
    bytes: Tensor


@dataclass
class Ledger:
    """What a round's policies made clients receive; what is still at hand is not received again.

    Args:
        models: [n, n], receiver i fetched the shared parameters of node j (looked at or mixed).
        mixed: [n, n], of these, the ones that were mixed.

    Attributes:
        parts: what else than models was received, by what it is and how many numbers it has: bool [n, n], i got that
            of j (a layer of the model, an update beside it).
        repeated: how many models were fetched once more, after the receiver had forgotten them.
        kept: bool [n, n], the models that i has at hand now.
        summed: bool [n, n], i has j's model as a part of a sum, which can be mixed without fetching it again.
        sizes: long [n], the bytes of a model of each sender where an Outgoing policy says so, -1 elsewhere; None: of
            nobody.
        held: long [n], how many of others' models each node had at hand at once, at most; sums are not counted.
    """

    models: Tensor
    mixed: Tensor

    def __post_init__(self) -> None:
        self.parts: dict[tuple[str, int], Tensor] = {}
        self.kept, self.summed = torch.zeros_like(self.models), torch.zeros_like(self.models)
        self.repeated = 0
        self.sizes: Tensor | None = None
        self._again: Tensor | None = None  # most rounds repeat nothing
        self.held = torch.zeros(len(self.models), dtype=torch.long)

    @classmethod
    def empty(cls, nodes: int) -> Ledger:
        """Nothing received yet."""
        models, mixed = torch.zeros(2, nodes, nodes, dtype=torch.bool)
        return cls(models, mixed)

    @property
    def again(self) -> Tensor:
        """How often i fetched j's model once more, long [n, n]."""
        return torch.zeros_like(self.models, dtype=torch.long) if self._again is None else self._again

    def fetch(self, receivers: Tensor, senders: Tensor, mixed: bool = False) -> None:
        """Receivers fetch the senders' models; one's own costs nothing, nor what is at hand."""
        foreign = receivers != senders
        receivers, senders = receivers[foreign], senders[foreign]
        known = self.kept[receivers, senders]
        if mixed:
            self.mixed[receivers, senders] = True
            known = known | self.summed[receivers, senders]
        receivers, senders = receivers[~known], senders[~known]
        repeats = self.models[receivers, senders]
        if repeats.any():
            self._again = self.again
            self._again[receivers, senders] += repeats.long()  # a pair twice in a call counts once
            self.repeated = int(self._again.sum())
        self.models[receivers, senders] = True
        self.kept[receivers, senders] = True
        busy = torch.zeros_like(self.held, dtype=torch.bool)
        busy[receivers] = True
        who = torch.nonzero(busy).squeeze(1)
        self.held[who] = torch.maximum(self.held[who], self.kept[who].sum(1))

    @property
    def proxies(self) -> Tensor:
        """Whether i got any part of j, bool [n, n]."""
        found = torch.zeros_like(self.models)
        for pairs in self.parts.values():
            found |= pairs
        return found

    def fetch_part(self, what: str, numbers: int, receivers: Tensor, senders: Tensor) -> None:
        """Receivers fetch something of the senders that is no model; the same once a round, one's own for nothing.

        Args:
            what: the name of the part; parts of different names are different messages.
            numbers: how many numbers it has.
            receivers: long [p].
            senders: long [p].
        """
        foreign = receivers != senders
        if (what, numbers) not in self.parts:
            self.parts[what, numbers] = torch.zeros_like(self.models)
        self.parts[what, numbers][receivers[foreign], senders[foreign]] = True

    def resize(self, senders: Tensor, size: int) -> None:
        """A model of these senders, long [s], has so many bytes."""
        if self.sizes is None:
            self.sizes = torch.full((len(self.models),), -1)
        self.sizes[senders] = size

    def model_bytes(self, numbers: int) -> Tensor:
        """Bytes of a model of each sender, long [n].

        Args:
            numbers: how many a whole model has.
        """
        whole = torch.full((len(self.models),), BYTES * numbers)
        return whole if self.sizes is None else torch.where(self.sizes < 0, whole, self.sizes)

    def total_bytes(self, numbers: int) -> int:
        """Of everything that was received; `numbers` as for `model_bytes`."""
        parts = sum(size * int(pairs.sum()) for (_, size), pairs in self.parts.items())
        models = int(self.models.sum()) + self.repeated
        if self.sizes is None:
            return BYTES * (models * numbers + parts)
        times = self.models.sum(0) if self._again is None else (self.models + self._again).sum(0)
        return int((times * self.model_bytes(numbers)).sum()) + BYTES * parts

    def by_link(self, numbers: int) -> Messages:
        """What went over each link that was used.

        Args:
            numbers: how many a whole model has.
        """
        used = self.models
        for pairs in self.parts.values():
            used = used | pairs
        receivers, senders = pairs_of(used)
        models = self.models[receivers, senders].long()
        if self._again is not None:
            models += self._again[receivers, senders]
        parts, sent = torch.zeros_like(models), models * self.model_bytes(numbers)[senders]
        for (_, size), pairs in self.parts.items():
            got = pairs[receivers, senders].long()
            parts, sent = parts + got, sent + got * BYTES * size
        return Messages(receivers, senders, models, parts, sent)

    def forget(self, receivers: Tensor) -> None:
        """The receivers, long [r], throw away the models that they have at hand."""
        self.kept[receivers] = False


def _without_own(weights: Tensor, receivers: Tensor) -> tuple[Tensor, Tensor]:
    """Weights [w, rows] of others' rows, and those of the receivers' own, long [w]; -1 has none."""
    own = torch.zeros_like(weights)
    has = torch.nonzero(receivers >= 0).squeeze(1)
    own[has, receivers[has]] = weights[has, receivers[has]]
    return torch.where(own != 0, 0, weights), own


@dataclass
class Substitutes:
    """Rows beside the nodes' own that may speak for somebody.

    Args:
        rows: the row set; its first m rows speak for the m clients.
        relative: whether they are updates, to be added to the receiver's own model.
    """

    rows: str
    relative: bool


@dataclass
class Round:
    """One communication round: created by the protocol, filled by the hooks from top to bottom, then thrown away.

    Args:
        index: the round, 0-based.
        federation: what is fixed for the run.
        reachable: whom i can hear, bool [n, n].
        active: who is up, bool [n]; servers always are.
        available: whom i may choose from, bool [n, n]: the reachable ones that are up, or all of them where a
            substitution speaks for the others.
        receivers: who mixes this round, bool [n]: the active clients, or the servers.
        jobs: where each active client's local training starts; default its own model, or its server's.
        candidates: whom i looks at, bool [n, n], within `available`.
        phases: of each client's local training.
        hyperparameters: the learning rate of each of the optimizer's groups, and what a schedule changed besides.
        losses: mean local training loss, float64 [m], NaN for who did not train.
        diverged: clients whose training ended in NaN or infinity, bool [m].
        similarity: between clients, float64 [n, n], NaN = unknown.
        scores: what neighbours are chosen by, float64 [n, n]; 1 is an average neighbour.
        threshold: in units of scores, float64 [n], or None.
        selected: whom i would mix if all were up, bool [n, n].
        stand_in: the row that speaks for j towards i, long [n, n]: its own, a friend's, one of `substitutes`
            (from n on), or -1: the mean of the active ones i selected.
        likeness: how alike a substitution finds the clients, float64 [n, n], NaN = unknown.
        votes: how often each row speaks to i, float64 [n, P].
        weights: of rows in receivers' new models, float64 [n, P].
        metrics: numbers for this round's row of `metrics.csv`.
    """

    index: int
    federation: Federation
    reachable: Tensor
    active: Tensor
    available: Tensor
    receivers: Tensor
    jobs: References
    candidates: Tensor
    phases: tuple[Phase, ...]
    hyperparameters: Hyperparameters
    losses: Tensor | None = None
    diverged: Tensor | None = None
    similarity: Tensor | None = None
    scores: Tensor | None = None
    threshold: Tensor | None = None
    selected: Tensor | None = None
    stand_in: Tensor | None = None
    substitutes: list[Substitutes] = field(default_factory=list)
    likeness: Tensor | None = None
    votes: Tensor | None = None
    weights: Tensor | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    ledger: Ledger = field(default_factory=lambda: Ledger.empty(0))

    def __post_init__(self) -> None:
        if not len(self.ledger.models):
            self.ledger = Ledger.empty(self.num_nodes)

    # --- small helpers -----------------------------------------------------------------------------------------------
    @property
    def num_clients(self) -> int:
        """Clients, m."""
        return self.federation.num_clients

    @property
    def num_nodes(self) -> int:
        """Clients and servers, n."""
        return self.federation.num_nodes

    @property
    def num_servers(self) -> int:
        """Servers in the topology, c."""
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
        """The clients' clusters, long [m], where they are known."""
        return self.federation.clusters

    @property
    def has_a_door(self) -> bool:
        """Whether a policy changes what clients send."""
        return any(type(policy).on_outgoing is not RoundCallback.on_outgoing for policy in self.federation.policies)

    @property
    def row_owner(self) -> Tensor:
        """Whose model each row that `votes` and `weights` index is, long [P]."""
        clients = torch.arange(self.num_clients)
        return torch.cat([torch.arange(self.num_nodes), *[clients] * len(self.substitutes)])

    @property
    def dropped(self) -> Tensor:
        """Clients that are not up, bool [m]."""
        return ~self.active[: self.num_clients]

    @property
    def participants(self) -> Tensor:
        """Clients that trained this round and did not diverge, bool [m]."""
        took_part = torch.zeros(self.num_clients, dtype=torch.bool)
        took_part[self.jobs.owners] = True
        return took_part & self.active[: self.num_clients]

    @property
    def lr(self) -> float:
        """The round's learning rate; that of the first group, where the optimizer has several."""
        return float(self.hyperparameters[0]["lr"])

    def stream(self, purpose: str, *words: int) -> torch.Generator:
        """A generator for a named draw of this round; see `dfl_lightning.utils.random_streams`."""
        return stream(self.federation.seed, purpose, self.index, *words)

    def between_clients(self, matrix: Tensor, fill: float = float("nan")) -> Tensor:
        """A matrix between clients [m, m] as one between nodes [n, n]; itself where all nodes are clients."""
        if not self.num_servers:
            return matrix
        full = torch.full((self.num_nodes, self.num_nodes), fill, dtype=matrix.dtype)
        full[: self.num_clients, : self.num_clients] = matrix
        return full

    def log(self, name: str, value: float) -> None:
        """A number for this round's row of `metrics.csv` and the loggers."""
        self.metrics[name] = float(value)

    # --- the verbs, charged to the ledger and through the door --------------------------------------------------------
    # Of `trained`, a client reads its own row; in the place of others' it reads what they have `sent`.
    def evaluate(self, references: References, split: str = "train") -> Evaluation:
        """Score references on their owners' data; every foreign row costs its owner a model."""
        self.charge(references)
        parts = self._as_received(references)
        if len(parts) == 1:
            return self.federation.engine.evaluate(parts[0][1], split)
        losses = torch.full((len(references),), float("nan"), dtype=torch.float64)
        metrics: dict[str, Tensor] = {}
        for index, part in parts:
            found = self.federation.engine.evaluate(part, split)
            losses[index] = found.losses
            for name, values in found.metrics.items():
                metrics.setdefault(name, torch.full_like(losses, float("nan")))[index] = values
        return Evaluation(losses, metrics)

    def evaluate_pairs(self, pairs: Tensor, rows: str = "trained", split: str = "train") -> Tensor:
        """Loss of j's model, completed by i's personal parameters, on i's data: float64 [n, n], NaN outside `pairs`.

        Args:
            pairs: bool [n, n], receiver by sender; receivers are clients.
            rows: `trained` (after this round's local work; of others what they sent) or `models` (before).
            split: `train` or `val`.
        """
        receivers, senders = pairs_of(pairs[:, : self.num_nodes])
        losses = torch.full((self.num_nodes, self.num_nodes), float("nan"), dtype=torch.float64)
        losses[receivers, senders] = self.evaluate(References.rows(rows, senders, receivers, rows), split).losses
        return losses

    def evaluate_votes(self, split: str = "train") -> Tensor:
        """Loss of each row with a vote on the receiver's data: float64 [n, P], NaN where there is no vote.

        Receivers must be clients: a server has no data.

        Args:
            split: `train` or `val`.
        """
        assert self.votes is not None
        losses = torch.full_like(self.votes, float("nan"))
        n, m = self.num_nodes, self.num_clients
        edges = [0, n, *(n + m * (block + 1) for block in range(len(self.substitutes)))]
        for start, stop in pairwise(edges):
            receivers, rows = pairs_of(self.votes[:, start:stop] > 0)
            if len(rows):
                references = self.spoken(receivers, rows + start)
                losses[receivers, rows + start] = self.evaluate(references, split).losses
        return losses

    def compare(
        self,
        rows: str | Tensor,
        pairs: Tensor,
        columns: Columns | None = None,
        relative_to: str | None = None,
        centre: bool = False,
    ) -> Comparison:
        """Similarities between clients, float64 [n, n]; each pair is charged as `charge_comparison` says.

        A receiver compares its own trained row with what the senders sent; servers, which have rows of nobody else,
        compare what was sent on both sides. What is subtracted from a sender's row is the sender's.

        Raises:
            UserError: there are Outgoing policies, and they have changed nothing of these rows.
        """
        m = self.num_clients
        pairs = pairs[:m, :m]
        self.charge_comparison(rows, pairs, columns, relative_to)
        passed = isinstance(rows, str) and rows != "models"
        if self.has_a_door and not passed and bool((pairs & ~torch.eye(m, dtype=torch.bool)).any()):
            what = "models from before the round's training" if isinstance(rows, str) else "gradients"
            self._refuse_unsent(f"compares clients by {what}")
        to = "sent" if isinstance(rows, str) and rows == "trained" else None
        if to is not None and self.num_servers:
            rows, to = "sent", None
        found = self.bank.compare(rows, pairs, columns, relative_to, centre, to)
        return Comparison(self.between_clients(found.cosines), self.between_clients(found.distances))

    def gradients(self, references: References, batches: int | None = None) -> Tensor:
        """Gradients of the mean training loss at the references, [n, width]; costs what the references cost."""
        self.charge(references)
        training = Training("local", self.index, self.phases, self.hyperparameters, True, batches)
        (_, first), *others = self._as_received(references)
        gradients = self.federation.engine.gradients(first, training)
        for _, part in others:
            gradients += self.federation.engine.gradients(part, training)  # zero where the owner has no job
        return gradients

    def mix(
        self, terms: Sequence[tuple[Tensor, str]], into: str, where: Tensor, columns: Columns | None = None
    ) -> None:
        """Rows `where` of `into` become the sum of weights @ rows; a foreign row costs a model.

        Args:
            terms: (weights [w, rows], row set) summands, w = rows written.
            into: `models`, or a set that a policy declared or made by `bank.scratch`.
            where: bool [n] or long [w].
            columns: default the shared columns.
        """
        index = torch.nonzero(where).squeeze(1) if where.dtype == torch.bool else where
        if into == "models":  # writing a policy's own memory is not a message
            for weights, name in terms:
                stored = any(name == substitutes.rows for substitutes in self.substitutes)
                if name in ("trained", "sent", "models") or (
                    stored and not self.num_servers
                ):  # a server keeps its uploads
                    rows, senders = pairs_of(weights != 0)
                    self.ledger.fetch(index[rows], senders, mixed=True)
        self._refuse_mixing_starts(terms, index)
        self.bank.mix(self.received_terms(terms, index), into, index, columns)

    def reduce(self, votes: Tensor, fn: Reduce, into: str = "models") -> None:
        """Rows of receivers become a function, column by column, of the rows that have a vote; charged as `mix` does.

        A row counts once, however many votes it has. Rows of `substitutes` are received as the models that they make.
        Personal columns stay; a receiver without votes keeps its row.

        Args:
            votes: [n, P], as `round.votes`.
            fn: [receivers, received, columns] -> [receivers, columns]: of receivers that hear equally many rows, a
                block of columns at a time, in several threads.
            into: `models`, or a set that a policy declared.
        """
        n, m = self.num_nodes, self.num_clients
        receivers, senders = pairs_of((votes != 0)[:, :n])
        foreign = senders != receivers
        entries: list[tuple[str, Tensor, Tensor, str | None]] = [
            ("trained", receivers[~foreign], senders[~foreign], None),
            ("sent", receivers[foreign], senders[foreign], None),
        ]
        charged = [(receivers, senders)]
        for block, substitutes in enumerate(self.substitutes):
            listeners, whose = pairs_of((votes != 0)[:, n + block * m : n + (block + 1) * m])
            entries.append((substitutes.rows, listeners, whose, "models" if substitutes.relative else None))
            if not self.num_servers:  # a server keeps its uploads
                charged.append((listeners, whose))
        if into == "models":
            for who, whom in charged:
                self.ledger.fetch(who, whom, mixed=True)
        self.bank.reduce(entries, fn, into)

    def charge_comparison(
        self, rows: str | Tensor, pairs: Tensor, columns: Columns | None = None, relative_to: str | None = None
    ) -> None:
        """Each foreign pair, bool [m, m], costs what the receiver must have to compare.

        That is the sender's model where the receiver can work out from it what is compared: whole models as they are,
        or less a start that all have in common. Anything else is sent for the purpose and charged as a part: a layer,
        gradients, or the update of a whole model, since only the sender knows where its round started (and, where
        clients start apart, its first model). If the model is mixed too, it is a second message.

        Under servers nothing is charged: they compare what clients upload anyway.
        """
        if self.num_servers:
            return
        whole = self.bank.layout.shared_parameters
        columns = whole if columns is None else columns
        known_origin = relative_to is None or (relative_to == "initial" and self.federation.common_start)
        if isinstance(rows, str) and rows in ("trained", "sent", "models") and known_origin and columns == whole:
            self.ledger.fetch(*pairs_of(pairs))
            return
        what = f"{rows if isinstance(rows, str) else 'gradients'} less {relative_to}, columns {columns.ranges}"
        self.ledger.fetch_part(what, len(columns), *pairs_of(pairs))

    def charge(self, references: References) -> None:
        """Every foreign row in the references costs its owner a model.

        Raises:
            UserError: one is a client's model that no Outgoing policy has passed.
        """
        for term in references.terms:
            if term.rows not in ("models", "trained", "sent"):
                continue
            if term.which.is_floating_point():
                jobs, senders = pairs_of(term.which != 0)
                receivers = references.owners[jobs]
            else:
                receivers, senders = references.owners, term.which
            client = receivers >= 0
            receivers, senders = receivers[client], senders[client]
            if term.rows == "models" and self.has_a_door:
                unsent = (senders != receivers) & (senders < self.num_clients)
                if unsent.any():
                    self._refuse_unsent(
                        f"reads client {int(senders[unsent][0])}'s model from before the round's training"
                    )
            self.ledger.fetch(receivers, senders)

    # --- the door -----------------------------------------------------------------------------------------------------
    def received_terms(self, terms: Sequence[tuple[Tensor, str]], receivers: Tensor) -> list[tuple[Tensor, str]]:
        """Summands of `mix` in which receivers find of `trained` their own row, and of others what these sent.

        Args:
            terms: (weights [w, rows], row set).
            receivers: long [w].
        """
        if not self.bank.sends_something_else:
            return list(terms)
        found: list[tuple[Tensor, str]] = []
        for weights, name in terms:
            if name == "trained":
                of_others, own = _without_own(weights, receivers)
                found += [(own, "trained"), (of_others, "sent")]
            else:
                found.append((weights, name))
        return found

    def _as_received(self, references: References) -> list[tuple[Tensor, References]]:
        """The same references with `sent` in the place of others' rows of `trained`, and which of them these are."""
        everything = torch.arange(len(references))
        if not self.bank.sends_something_else:
            return [(everything, references)]
        terms: list[Term] = []
        own_of: list[Tensor] = []  # of each term with single rows of `trained`
        for term in references.terms:
            if term.rows == "trained" and term.which.is_floating_point():
                of_others, own = _without_own(term.which, references.owners)
                terms += [Term("trained", own), Term("sent", of_others)]
            else:
                terms.append(term)
                if term.rows == "trained":
                    own_of.append(term.which == references.owners)
        pattern = sum((own.long() << place for place, own in enumerate(own_of)), torch.zeros_like(everything))
        found = []
        for kind in pattern.unique().tolist():
            index = torch.nonzero(pattern == kind).squeeze(1)
            places = iter(range(len(own_of)))
            read = [
                replace(term, rows="trained" if kind >> next(places) & 1 else "sent")
                if term.rows == "trained" and not term.which.is_floating_point()
                else term
                for term in terms
            ]
            found.append((index, replace(references, terms=tuple(read)).take(index)))
        return found

    def _refuse_mixing_starts(self, terms: Sequence[tuple[Tensor, str]], receivers: Tensor) -> None:
        """Of another client's model from before the training only the update may be used: less what it sent."""
        if not self.has_a_door:
            return
        m = self.num_clients
        starts, all_of = (torch.zeros(len(receivers), self.num_nodes, dtype=torch.float64) for _ in range(2))
        for weights, name in terms:
            if name in ("models", "trained", "sent"):
                all_of += weights
                starts += weights if name == "models" else 0
        starts, all_of = (_without_own(weights, receivers)[0][:, :m] for weights in (starts, all_of))
        unsent = torch.nonzero((starts != 0) & (all_of != 0))
        if len(unsent):
            self._refuse_unsent(f"mixes client {int(unsent[0, 1])}'s model from before the round's training")

    def _refuse_unsent(self, what: str) -> None:
        raise UserError(
            f"round {self.index}: a policy {what}, which no Outgoing policy has passed; "
            "read the row set 'trained' or 'sent', or run without --outgoing"
        )

    def spoken(self, receivers: Tensor, rows: Tensor) -> References:
        """References to the rows that `votes` and `weights` index: trained models, then `substitutes` block by block.

        Args:
            receivers: long [J], who listens.
            rows: long [J], all within one block of n, or m, rows.
        """
        if not len(rows) or int(rows.max()) < self.num_nodes:
            return References.rows("trained", rows, receivers, "trained")
        block = (int(rows[0]) - self.num_nodes) // self.num_clients
        substitutes = self.substitutes[block]
        which = rows - self.num_nodes - block * self.num_clients
        terms = [Term(substitutes.rows, which)]
        if substitutes.relative:
            terms.append(Term("models", receivers))
        return References(tuple(terms), receivers, "trained")


class RoundCallback(Callback):
    """A Lightning callback that also hears the hooks of a communication round, called in this order.

    Each hook reads what is above it in `Round` and writes its own field. State between rounds lives in attributes that
    `state` names; only tensors, numbers, strings, lists and dicts, and only small things: never rows of the bank.

    Attributes:
        state: names of the attributes that a checkpoint holds.
        reads: names of `Round` fields of other families that this policy uses; a threshold that nobody reads is
            switched off.
        row_sets: row sets that the policy wants in the bank, by name, and what they begin as: `models` (the first
            models) or `zeros`.
        reports: the row set that clients are evaluated and exported by, where it is not `models`.
        supports_servers: whether it works where servers receive and mix.
        switched_off: set by the trainer where nothing reads what this policy writes.
    """

    switched_off = False
    state: tuple[str, ...] = ()
    reads: frozenset[str] = frozenset()
    row_sets: Mapping[str, str] = {}  # read only
    reports: str | None = None
    supports_servers: bool = True

    def state_dict(self) -> dict[str, Any]:
        """The attributes that `state` names."""
        return {name: getattr(self, name) for name in self.state}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        for name in self.state:
            setattr(self, name, state_dict[name])

    def start(self, federation: Federation) -> None:
        """Before a run: refuse what cannot work, with a `UserError`."""

    def on_dropout(self, round: Round) -> None:
        """Say who is up: `active`."""

    def on_propose(self, round: Round) -> None:
        """Say where training starts and whom to look at: `jobs`, `candidates`."""

    def on_outgoing(self, round: Round) -> None:
        """Say what clients send: the row set `sent`."""

    def on_trained(self, round: Round) -> None:
        """After local training: remember, score."""

    def on_compare(self, round: Round) -> None:
        """Judge the candidates: `similarity`, `scores`."""

    def on_threshold(self, round: Round) -> None:
        """Say what score is enough: `threshold`."""

    def on_select(self, round: Round) -> None:
        """Choose whom to learn from: `selected`."""

    def on_substitute(self, round: Round) -> None:
        """Say who speaks for those that dropped out: `stand_in`, `substitutes`."""

    def on_weigh(self, round: Round) -> None:
        """Turn votes into `weights`."""

    def on_mix(self, round: Round) -> None:
        """Write the new models."""

    def on_round_end(self, round: Round) -> None:
        """Last change of the policies' state; `log` numbers."""

    def on_engine_progress(self, done: int, total: int) -> None:
        """After each cohort of the local training."""

    def on_boundary(self, trainer: Any, module: Any) -> None:
        """The round is over, evaluated and closed: write files. As Lightning's own hooks, with trainer and module."""


def refuse_wrong_hooks(callback: RoundCallback) -> None:
    """A hook that takes other arguments than it is called with.

    Raises:
        UserError: which, and what it takes.
    """
    for name, plain in vars(RoundCallback).items():
        own = getattr(type(callback), name)
        if not name.startswith(("on_", "start")) or own is plain:
            continue
        wanted = list(inspect.signature(plain).parameters)
        try:
            inspect.signature(own).bind(*wanted)
        except TypeError:
            raise UserError(
                f"{name_of(callback)}: {name}{inspect.signature(own)} has other arguments than the round calls it "
                f"with; write def {name}({', '.join(wanted)})"
            ) from None


def call_round_hook(trainer: Any, name: str, *args: Any) -> None:
    """Call a hook of all round callbacks, in their order, each under its name in the profiler.

    Raises:
        UserError: a user's own one draws from a global generator.
    """
    for callback in trainer.callbacks:
        if not isinstance(callback, RoundCallback) or callback.switched_off:
            continue
        if getattr(type(callback), name) is not getattr(RoundCallback, name):
            with (
                trainer.profiler.profile(f"[RoundCallback]{callback.state_key}.{name}"),
                torch.no_grad(),
                draws_by_name_only(trainer.lightning_module.bank.boundary.round, callback, name),
            ):
                getattr(callback, name)(*args)


def draws_by_name_only(number: int, who: object, where: str) -> AbstractContextManager[None]:
    """Around code of a user's: it must not draw from a global generator.

    Ours is not watched, to save its time; tests do it.

    Args:
        number: of the round.
        who: whose code.
        where: its method.
    """
    name = name_of(who)
    if name.startswith("dfl_lightning."):
        return nullcontext()

    def refusal(generators: str) -> str:
        return (
            f"round {number}: {name} draws from {generators} in {where}, whose state no checkpoint "
            "holds, so that a resumed run would differ; draw with generator=round.stream('a name of yours')"
        )

    return no_global_draws(refusal)
