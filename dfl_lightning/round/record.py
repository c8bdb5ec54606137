"""The record of a communication round, with the verbs that its policies use.

The communication graph is a list of links (an edge j -> i: i receives from j), narrowed from step to step; a number
for each link stands in a tensor beside its list. Ids are 0-based. Nodes are the m clients and, in a server topology,
the servers after them (n nodes).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from dfl_lightning.bank.bank import Bank
from dfl_lightning.bank.comparing.similarity import Comparison
from dfl_lightning.bank.layout import Columns
from dfl_lightning.bank.reducing import Reduce
from dfl_lightning.bank.references import References, Term, Weights
from dfl_lightning.data import ClientData
from dfl_lightning.engines.jobs import Evaluation, Training
from dfl_lightning.engines.local_work import Phase
from dfl_lightning.engines.optimizing.optimizers import Hyperparameters
from dfl_lightning.links import LinkMemory, Links
from dfl_lightning.round.federation import Federation
from dfl_lightning.round.ledger import Ledger
from dfl_lightning.round.written import Written
from dfl_lightning.utils.errors import UserError
from dfl_lightning.utils.randomness.random_streams import stream, stream_seed
from dfl_lightning.utils.words import nth_round


@dataclass
class SubstituteRows:
    """Rows beside the nodes' own that may stand in for clients.

    Args:
        rows: the row set; its first m rows stand in for the m clients.
        relative: whether they are updates, to be added to the receiver's own model.
    """

    rows: str
    relative: bool


@dataclass(repr=False, eq=False)
class Round:
    """One communication round: created by the protocol, filled by the hooks from top to bottom, then thrown away.

    Args:
        index: the round, 0-based.
        federation: what is fixed for the run.
        reachable: in-neighbours of each node.
        active: who is active, bool [n]; servers always are.
        available: whom a node may choose from: the reachable ones that are active, or all of them where a substitution
            replaces the others.
        receivers: who mixes this round, bool [n]: the active clients, or the servers.
        jobs: where each active client's local training starts; default its own model, or its server's.
        candidates: whom a node looks at, within `available`.
        phases: the parts of each client's local training.
        hyperparameters: the learning rate of each of the optimizer's groups, and what a schedule changed besides.
        losses: mean local training loss, float64 [m], NaN for who did not train.
        diverged: clients whose training ended in NaN or infinity, bool [m].
        similarity: how similar each candidate is to its receiver, float64 [len(candidates)], NaN = unknown.
        scores: what neighbours are chosen by, float64 [len(candidates)], NaN = unknown; 1 is an average neighbour.
        own_scores: each node's score of itself, float64 [n], where a selection has one.
        threshold: what score is enough for each node, float64 [n], or None.
        selected: whom a node would mix if all were active.
        substitute: the row that is mixed for each selected sender, long [len(selected)]: its own, a substitute's, one
            of `substitute_rows` (from n on), or -1: the mean of the active ones that the receiver selected.
        substitute_rows: row sets of a substitution, whose rows may be mixed besides the nodes' own.
        likeness: how alike a substitution finds clients, for those links that it has compared.
        voters: the rows that each receiver may mix; its own is there, whether it has a vote or not.
        votes: how often each of `voters` counts, float64 [len(voters)].
        weights: entries of the mixing matrix W at `voters`, shares of the new models, float64 [len(voters)].
        metrics: numbers for this round's row of `metrics.csv`.

    Attributes:
        ledger: who has fetched what in this round.
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
    ledger: Ledger = field(init=False)

    def __post_init__(self) -> None:
        self.ledger = Ledger(self.num_nodes)

    def __repr__(self) -> str:
        """Which round, and the fields that have a value so far."""
        known = ", ".join(name for name in vars(self) if self.has(name) and name not in ("index", "federation"))
        return f"Round({self.index}: {known})"

    def has(self, field: str) -> bool:
        """Tell whether a field has a value: not yet, where a hook that writes it is still to come (or was left out).

        Args:
            field: its name.
        """
        return vars(self).get(field) is not None

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
    def has_messages(self) -> bool:
        """Whether a policy changes what clients send."""
        return any(policy.changes_messages for policy in self.federation.policies)

    @property
    def row_owner(self) -> Tensor:
        """Whose model each row that `votes` and `weights` index is, long [P]."""
        clients = torch.arange(self.num_clients)
        return torch.cat([torch.arange(self.num_nodes), *[clients] * len(self.substitute_rows)])

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
        """Return a generator for a named draw of this round; see `dfl_lightning.utils.randomness.random_streams`.

        Args:
            purpose: what is drawn.
            *words: further coordinates, a client's id for example.
        """
        return stream(self.federation.seed, purpose, self.index, *words)

    def draw(self, links: Links, k: int | Tensor, purpose: str, *words: int) -> Links:
        """Choose k links of each receiver at random, every set of k equally likely; all where there are not more.

        A draw depends on the seed, the round, the words and the two ends of each link: a link more or less changes no
        other link's draw.

        Args:
            links: to choose from.
            k: the number, or one for each node, long [n].
            purpose: what is drawn.
            *words: further coordinates.
        """
        return links.draw(k, stream_seed(self.federation.seed, purpose, self.index, *words))

    def draws(self, links: Links, purpose: str, *words: int) -> Tensor:
        """Draw a number in [0, 1) for each link, float64 [E], named as by `draw`.

        Args:
            links: that get a number.
            purpose: what is drawn.
            *words: further coordinates.
        """
        return links.uniform(stream_seed(self.federation.seed, purpose, self.index, *words))

    @property
    def clients_only(self) -> Tensor:
        """Which nodes are clients, bool [n]."""
        return torch.arange(self.num_nodes) < self.num_clients

    def log(self, name: str, value: float) -> None:
        """Log a number for this round's row of `metrics.csv` and the loggers.

        Args:
            name: of the column.
            value: of this round.
        """
        self.metrics[name] = float(value)

    # --- the verbs, charged to the ledger -----------------------------------------------------------------------------
    # Of `trained`, a client reads its own row; in the place of others' it reads what they have `sent`.
    def evaluate(self, references: References, split: str = "train") -> Evaluation:
        """Score references on their owners' data; every foreign row costs its owner a model.

        Args:
            references: the models, and on whose data.
            split: `train`, `val` or `test`.
        """
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

    def loss_of(self, links: Links, rows: str = "trained", split: str = "train") -> Tensor:
        """Evaluate each sender's model, completed by the receiver's personal parameters, on the receiver's data.

        Args:
            links: receivers are clients; one may receive from itself.
            rows: `trained` (after this round's local work; of others what they sent) or `models` (before).
            split: `train` or `val`.

        Returns:
            float64 [E]; NaN where the sender has dropped out: its model cannot be had.
        """
        up = links.between(senders=self.active)
        found = self.evaluate(References.rows(rows, up.senders, up.receivers, rows), split).losses
        return found if len(up) == len(links) else up.spread(found, links)

    def vote_losses(self, split: str = "train") -> Tensor:
        """Evaluate each row with a vote on the receiver's data: float64 [len(voters)], NaN where there is no vote.

        Receivers must be clients: a server has no data.

        Args:
            split: `train` or `val`.
        """
        losses = torch.full_like(self.votes, float("nan"))
        for block in range(len(self.substitute_rows) + 1):
            at = torch.nonzero(self._of_block(self.voters.senders, block) & (self.votes > 0)).squeeze(1)
            if len(at):
                references = self.references(self.voters.receivers[at], self.voters.senders[at])
                losses[at] = self.evaluate(references, split).losses
        return losses

    def _of_block(self, rows: Tensor, block: int) -> Tensor:
        """Which of the rows are those of nodes (block 0) or of a set of substitutes, bool."""
        n, m = self.num_nodes, self.num_clients
        return rows < n if block == 0 else (rows >= n + (block - 1) * m) & (rows < n + block * m)

    def compare(
        self,
        rows: str | Tensor,
        links: Links,
        columns: Columns | None = None,
        relative_to: str | None = None,
        centre: bool = False,
        own: str | None = None,
    ) -> Comparison:
        """Compare clients, a similarity a link, NaN where the sender dropped out; charged as `charge_comparison` says.

        A receiver compares its own trained row with what the senders sent; servers, which have no rows of others,
        compare what was sent on both sides. What is subtracted from a sender's row is the sender's. With `own="models"`
        a receiver compares the model that it had before the round's training (FedFomo's distances); a link to itself
        then compares that with its own row of `rows`.

        Args:
            rows: a row set's name, or a matrix such as `gradients` returns.
            links: between clients.
            columns: which columns; default the shared parameters.
            relative_to: `start`, a row set, or nothing: what is subtracted from the rows.
            centre: subtract the mean of a receiver's neighbourhood; see `bank.similarity`.
            own: the row set of the receivers' own rows; default: that of `rows`.

        Raises:
            UserError: there are Outgoing policies, and they have changed nothing of these rows; or `own` under servers.
        """
        if own is not None and self.num_servers:
            raise UserError(f"{nth_round(self.index)}: under a server no client compares others with its own {own!r}")
        up = links.between(senders=self.active)
        self.charge_comparison(rows, up, columns, relative_to)
        passed = isinstance(rows, str) and rows != "models"
        if self.has_messages and not passed and bool((up.receivers != up.senders).any()):
            what = "models from before the round's training" if isinstance(rows, str) else "gradients"
            self._refuse_unsent(f"compares clients by {what}")
        to = "sent" if isinstance(rows, str) and rows == "trained" else None
        if to is not None and self.num_servers:
            rows, to = "sent", None
        found = self.bank.compare(rows, up, columns, relative_to, centre, to, own)
        if len(up) == len(links):
            return found
        return Comparison(up.spread(found.cosines, links), up.spread(found.distances, links))

    def gradients(self, references: References, batches: int | None = None) -> Tensor:
        """Compute gradients of the mean training loss at the references, [n, width]; costs what the references cost.

        Args:
            references: where the gradients are taken, and on whose training data.
            batches: the first so many batches of the epoch; default all.
        """
        self.charge(references)
        training = Training("local", self.index, self.phases, self.hyperparameters, True, batches)
        (_, first), *others = self._as_received(references)
        gradients = self.federation.engine.gradients(first, training)
        for _, part in others:
            gradients += self.federation.engine.gradients(part, training)  # zero where the owner has no job
        return gradients

    def mix(
        self, terms: Sequence[tuple[Weights | Tensor, str]], into: str, where: Tensor, columns: Columns | None = None
    ) -> None:
        """Set rows `where` of `into` to the sum of weights @ rows; a foreign row costs a model.

        Args:
            terms: (weights of nodes' rows in w sums, row set) summands, w = rows written; weights may be a matrix
                [w, n].
            into: `models`, or a set that a policy declared or made by `bank.scratch`.
            where: bool [n] or long [w].
            columns: default the shared columns.
        """
        index = torch.nonzero(where).squeeze(1) if where.dtype == torch.bool else where
        sparse = [(Weights.of(weights), name) for weights, name in terms]
        if into == "models":  # writing a policy's own memory is not a message
            for weights, name in sparse:
                stored = any(name == substitutes.rows for substitutes in self.substitute_rows)
                if name in ("trained", "sent", "models") or (
                    stored and not self.num_servers
                ):  # a server keeps its uploads
                    counted = weights.shares != 0
                    self.ledger.fetch(index[weights.jobs[counted]], weights.rows[counted], mixed=True)
        self._refuse_mixing_starts(sparse, index)
        self.bank.mix(self.received_terms(sparse, index), into, index, columns)

    def combine(
        self, fn: Callable[..., Tensor], sets: Sequence[str], into: str, where: Tensor, columns: Columns | None = None
    ) -> None:
        """Make rows of nodes a function, entry by entry, of their own rows of several sets, which costs nothing.

        Args:
            fn: a block [k, columns] of each set -> [k, columns].
            sets: names of row sets, such as sums that `mix` has written into sets made by `bank.scratch`.
            into: `models`, or a set that a policy declared or made by `bank.scratch`.
            where: bool [n] or long [w].
            columns: default the shared columns.
        """
        self.bank.combine(fn, sets, into, where, columns)

    def mix_again(self, weights: Tensor, where: Tensor) -> None:
        """Mix once more the models that have just been mixed; each is received once more.

        Args:
            weights: float64 [len(voters)], of nodes' rows only.
            where: the receivers, bool [n].
        """
        counted = (weights != 0) & where[self.voters.receivers]
        receivers, senders = self.voters.receivers[counted], self.voters.senders[counted]
        nodes = torch.nonzero(where).squeeze(1)
        self.ledger.forget(nodes)
        self.ledger.fetch(receivers, senders, mixed=True)
        jobs = (where.cumsum(0) - 1)[receivers]
        self.bank.mix_again(Weights(jobs, senders, weights[counted], (len(nodes), self.num_nodes)), nodes)

    def reduce(self, votes: Tensor, fn: Reduce, into: str = "models") -> None:
        """Make rows of receivers a function, column by column, of the rows that have a vote; charged as `mix` does.

        A row counts once, however many votes it has. Rows of `substitute_rows` are received as the models they make.
        Personal columns stay; a receiver without votes keeps its row.

        Args:
            votes: [len(voters)], as `round.votes`.
            fn: [receivers, received, columns] -> [receivers, columns]: of receivers of equally many rows, a
                block of columns at a time, in several threads.
            into: `models`, or a set that a policy declared.
        """
        n, m = self.num_nodes, self.num_clients
        counted = votes != 0
        hearing, rows = self.voters.receivers[counted], self.voters.senders[counted]
        of_nodes = self._of_block(rows, 0)
        receivers, senders = hearing[of_nodes], rows[of_nodes]
        foreign = senders != receivers
        entries: list[tuple[str, Tensor, Tensor, str | None]] = [
            ("trained", receivers[~foreign], senders[~foreign], None),
            ("sent", receivers[foreign], senders[foreign], None),
        ]
        charged = [(receivers, senders)]
        for block, substitutes in enumerate(self.substitute_rows, start=1):
            inside = self._of_block(rows, block)
            listeners, whose = hearing[inside], rows[inside] - n - (block - 1) * m
            entries.append((substitutes.rows, listeners, whose, "models" if substitutes.relative else None))
            if not self.num_servers:  # a server keeps its uploads
                charged.append((listeners, whose))
        if into == "models":
            for who, whom in charged:
                self.ledger.fetch(who, whom, mixed=True)
        self.bank.reduce(entries, fn, into)

    def charge_comparison(
        self, rows: str | Tensor, links: Links, columns: Columns | None = None, relative_to: str | None = None
    ) -> None:
        """Charge each link for what the receiver must have to compare; one to itself costs nothing.

        That is the sender's model where the receiver can work out from it what is compared: whole models as they are,
        or less a start that all have in common. Anything else is sent for the purpose and charged as a part: a layer,
        gradients, or the update of a whole model, since only the sender knows where its round started (and, where
        clients start apart, its first model). If the model is mixed too, it is a second message.

        Of what servers are compared with, clients upload their models; nothing else is charged there, for a server
        compares clients by what they upload anyway.

        Args:
            rows: what is compared, as for `compare`.
            links: between clients.
            columns: which columns; default the shared parameters.
            relative_to: what is subtracted, as for `compare`.
        """
        if self.num_servers:
            self.ledger.fetch_over(links.between(receivers=~self.clients_only))
            return
        whole = self.bank.layout.shared_parameters
        columns = whole if columns is None else columns
        known_origin = relative_to is None or (relative_to == "initial" and self.federation.common_start)
        if isinstance(rows, str) and rows in ("trained", "sent", "models") and known_origin and columns == whole:
            self.ledger.fetch(links.receivers, links.senders)
            return
        what = f"{rows if isinstance(rows, str) else 'gradients'} less {relative_to}, columns {columns.ranges}"
        self.ledger.fetch_part(what, len(columns), links)

    def charge_starts(self, links: Links) -> None:
        """Charge each link for the sender's model from before the round: another message than its trained one.

        Args:
            links: between clients.
        """
        self.ledger.fetch_part("model from before the round", len(self.bank.layout.shared), links)

    def charge_message(self, name: str, links: Links, size: Tensor | int) -> None:
        """Send receivers something that is no model and no part of one, a summary of data for example.

        Args:
            name: of the message; the same over a link counts once a round, one's own nothing.
            links: over which it is sent.
            size: bytes, of all of them or long [len(links)].
        """
        self.ledger.fetch_message(name, links, size)

    def charge(self, references: References) -> None:
        """Charge the owner of each foreign row in the references for a model.

        Raises:
            UserError: one is a client's model that no Outgoing policy has passed.
        """
        for term in references.terms:
            if term.rows not in ("models", "trained", "sent"):
                continue
            if isinstance(term.which, Weights):
                counted = term.which.shares != 0
                receivers, senders = references.owners[term.which.jobs[counted]], term.which.rows[counted]
            else:
                receivers, senders = references.owners, term.which
            client = receivers >= 0
            receivers, senders = receivers[client], senders[client]
            if term.rows == "models" and self.has_messages:
                unsent = (senders != receivers) & (senders < self.num_clients)
                if unsent.any():
                    self._refuse_unsent(
                        f"reads client {int(senders[unsent][0])}'s model from before the round's training"
                    )
            self.ledger.fetch(receivers, senders)

    # --- what others sent ---------------------------------------------------------------------------------------------
    def received_terms(self, terms: Sequence[tuple[Weights, str]], receivers: Tensor) -> list[tuple[Weights, str]]:
        """Return summands of `mix` in which receivers find of `trained` their own row, and of others what these sent.

        Args:
            terms: (weights of rows in w sums, row set).
            receivers: long [w].
        """
        if not self.bank.changes_messages:
            return list(terms)
        found: list[tuple[Weights, str]] = []
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
        if not self.bank.changes_messages:
            return [(everything, references)]
        terms: list[Term] = []
        own_of: list[Tensor] = []  # of each term with single rows of `trained`
        for term in references.terms:
            if term.rows == "trained" and isinstance(term.which, Weights):
                of_others, mine = _without_own(term.which, references.owners)
                terms += [Term("trained", mine), Term("sent", of_others)]
            else:
                terms.append(term)
                if term.rows == "trained" and isinstance(term.which, Tensor):
                    own_of.append(term.which == references.owners)
        pattern = sum((own.long() << place for place, own in enumerate(own_of)), torch.zeros_like(everything))
        found = []
        for kind in pattern.unique().tolist():
            index = torch.nonzero(pattern == kind).squeeze(1)
            places = iter(range(len(own_of)))
            read = [
                replace(term, rows="trained" if kind >> next(places) & 1 else "sent")
                if term.rows == "trained" and isinstance(term.which, Tensor)
                else term
                for term in terms
            ]
            found.append((index, replace(references, terms=tuple(read)).take(index)))
        return found

    def _refuse_mixing_starts(self, terms: Sequence[tuple[Weights, str]], receivers: Tensor) -> None:
        """Of another client's model from before the training only the update may be used: less what it sent."""
        if not self.has_messages:
            return
        m, n = self.num_clients, self.num_nodes
        read = [(weights, name) for weights, name in terms if name in ("models", "trained", "sent")]
        if not any(name == "models" for _, name in read):
            return
        codes = torch.cat([receivers[weights.jobs] * n + weights.rows for weights, _ in read])
        shares = torch.cat([weights.shares for weights, _ in read])
        starting = torch.cat([torch.full((len(weights.rows),), name == "models") for weights, name in read])
        pairs, place = codes.unique(return_inverse=True)
        zeros = torch.zeros(len(pairs), dtype=torch.float64)
        starts, all_of = zeros.index_add(0, place, shares * starting), zeros.index_add(0, place, shares)
        who, whom = pairs // n, pairs % n
        unsent = torch.nonzero((starts != 0) & (all_of != 0) & (who != whom) & (whom < m)).squeeze(1)
        if len(unsent):
            self._refuse_unsent(f"mixes client {int(whom[unsent[0]])}'s model from before the round's training")

    def _refuse_unsent(self, what: str) -> None:
        raise UserError(
            f"{nth_round(self.index)}: a policy {what}, which no Outgoing policy has passed; "
            "read the row set 'trained' or 'sent', or run without --outgoing"
        )

    def references(self, receivers: Tensor, rows: Tensor) -> References:
        """Refer to the rows that `votes` and `weights` index: trained models, then each of `substitute_rows`.

        Args:
            receivers: long [J], whose models they are mixed into.
            rows: long [J], all within one block of n, or m, rows.
        """
        if not len(rows) or int(rows.max()) < self.num_nodes:
            return References.rows("trained", rows, receivers, "trained")
        block = (int(rows[0]) - self.num_nodes) // self.num_clients
        substitutes = self.substitute_rows[block]
        which = rows - self.num_nodes - block * self.num_clients
        terms = [Term(substitutes.rows, which)]
        if substitutes.relative:
            terms.append(Term("models", receivers))
        return References(tuple(terms), receivers, "trained")


def _without_own(weights: Weights, receivers: Tensor) -> tuple[Weights, Weights]:
    """Weights of others' rows, and those of the receivers' own, long [w]; -1 has none."""
    own = weights.rows == receivers[weights.jobs]
    return weights.keep(~own), weights.keep(own)
