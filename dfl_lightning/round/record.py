"""The record of a communication round, with the operations (verbs) that its policies use.

The communication graph is a list of links (an edge j -> i: i receives from j), which is narrowed from step to step.
Values of links are kept in a tensor with an entry for each link of a list. Ids are 0-based. Nodes are the m clients
and, in a server topology, the servers after them: n nodes.
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
    """A row set whose rows may be mixed instead of clients' trained models.

    Args:
        rows: name of the row set; its first m rows are the substitutes of the m clients.
        relative: True if the rows are updates, which are added to the receiver's own model.
    """

    rows: str
    relative: bool


@dataclass(repr=False, eq=False)
class Round:
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

    Attributes:
        ledger: the messages that were received in this round.
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
        """Show the round's index and the fields that have a value so far."""
        written = ", ".join(name for name in vars(self) if self.has(name) and name not in ("index", "federation"))
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
        """Clients that are not active in this round, bool [m]."""
        return ~self.active[: self.num_clients]

    @property
    def participants(self) -> Tensor:
        """Clients that trained this round and did not diverge, bool [m]."""
        trained = torch.zeros(self.num_clients, dtype=torch.bool)
        trained[self.jobs.owners] = True
        return trained & self.active[: self.num_clients]

    @property
    def lr(self) -> float:
        """The round's learning rate; if the optimizer has several groups, that of the first one."""
        return float(self.hyperparameters[0]["lr"])

    def stream(self, purpose: str, *words: int) -> torch.Generator:
        """Return a generator for a named draw of this round; see `dfl_lightning.utils.randomness.random_streams`.

        Args:
            purpose: name of what is drawn; draws of different names are independent.
            *words: further numbers that the draw depends on, for example a client's id.
        """
        return stream(self.federation.seed, purpose, self.index, *words)

    def draw(self, links: Links, k: int | Tensor, purpose: str, *words: int) -> Links:
        """Choose k links of each receiver at random, every set of k equally likely; all of them if it has at most k.

        A link's draw depends only on the seed, the round, the purpose, the words and the two nodes of the link. It does
        not change if other links are added or removed.

        Args:
            links: the links to choose from.
            k: number of links, for all receivers or for each node, long [n].
            purpose: name of what is drawn; draws of different names are independent.
            *words: further numbers that the draw depends on.
        """
        return links.draw(k, stream_seed(self.federation.seed, purpose, self.index, *words))

    def draws(self, links: Links, purpose: str, *words: int) -> Tensor:
        """Draw a number in [0, 1) for each link, float64 [E]; the number depends on the same things as in `draw`.

        Args:
            links: the links that get a number.
            purpose: name of what is drawn; draws of different names are independent.
            *words: further numbers that the draw depends on.
        """
        return links.uniform(stream_seed(self.federation.seed, purpose, self.index, *words))

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

    # --- the verbs, charged to the ledger -----------------------------------------------------------------------------
    # Of the row set `trained`, a client may read its own row only. For other clients it reads their rows of `sent`.
    def evaluate(self, references: References, split: str = "train") -> Evaluation:
        """Evaluate models on their owners' data; each row of another node is charged to the owner as a model.

        Args:
            references: the models, and the owners on whose data they are evaluated.
            split: `train`, `val` or `test`.
        """
        self.charge(references)
        parts = self._as_received(references)
        if len(parts) == 1:
            return self.federation.engine.evaluate(parts[0][1], split)
        losses = torch.full((len(references),), float("nan"), dtype=torch.float64)
        metrics: dict[str, Tensor] = {}
        for index, part in parts:
            evaluation = self.federation.engine.evaluate(part, split)
            losses[index] = evaluation.losses
            for name, values in evaluation.metrics.items():
                metrics.setdefault(name, torch.full_like(losses, float("nan")))[index] = values
        return Evaluation(losses, metrics)

    def loss_of(self, links: Links, rows: str = "trained", split: str = "train") -> Tensor:
        """Evaluate each sender's model, completed by the receiver's personal parameters, on the receiver's data.

        Args:
            links: links whose receivers are clients; a client may be linked to itself.
            rows: `trained` (the models after this round's training, for other clients what they sent) or `models` (the
                models before it).
            split: `train` or `val`.

        Returns:
            Losses, float64 [E]; NaN if the sender has dropped out.
        """
        up = links.between(senders=self.active)
        losses = self.evaluate(References.rows(rows, up.senders, up.receivers, rows), split).losses
        return losses if len(up) == len(links) else up.spread(losses, links)

    def vote_losses(self, split: str = "train") -> Tensor:
        """Evaluate each row that has a vote on the receiver's data; float64 [len(voters)], NaN for rows without a vote.

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
        """Return a mask of the rows that belong to a block: the nodes' rows (block 0) or a set of substitute rows."""
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
        """Compute the similarity of the clients of each link; NaN if the sender dropped out; see `charge_comparison`.

        A receiver compares its own trained row with the rows that the senders sent. A server compares sent rows on both
        sides. With `own="models"` a receiver compares the model that it had before the round's training (FedFomo's
        distances); a link to itself then compares this model with its own row of `rows`.

        Args:
            rows: a row set's name, or a matrix such as `gradients` returns.
            links: links between clients.
            columns: the columns that count; default: the shared parameters.
            relative_to: what is subtracted from each row, by the client that the row belongs to: `start` (the model
                that its training started from), the row of that client in another row set, or None: nothing.
            centre: subtract the mean of a receiver's row and the rows that it compares it with; see `compare_rows`.
            own: the row set of the receivers' own rows; default: that of `rows`.

        Raises:
            UserError: there are Outgoing policies, and the rows are not among those that clients send; or `own` is
                given and there are servers.
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
        comparison = self.bank.compare(rows, up, columns, relative_to, centre, to, own)
        if len(up) == len(links):
            return comparison
        return Comparison(up.spread(comparison.cosines, links), up.spread(comparison.distances, links))

    def gradients(self, references: References, batches: int | None = None) -> Tensor:
        """Compute gradients of the mean training loss at the references, [n, width]; charged as in `evaluate`.

        Args:
            references: the models, and the owners on whose training data gradients are computed.
            batches: number of batches, the first ones of the epoch; default: all.
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
        """Set rows `where` of `into` to the sum over terms of weights @ rows; each row of another node costs a model.

        Args:
            terms: summands, each the weights of nodes' rows in w sums (or a matrix [w, n]) and the name of the row set.
            into: `models`, or a set that a policy declared or made by `bank.scratch`.
            where: bool [n] or long [w], the w nodes whose rows are written.
            columns: default: the shared columns.
        """
        index = torch.nonzero(where).squeeze(1) if where.dtype == torch.bool else where
        sparse = [(Weights.of(weights), name) for weights, name in terms]
        if into == "models":  # writing a policy's own memory is not a message
            for weights, name in sparse:
                stored = any(name == substitutes.rows for substitutes in self.substitute_rows)
                # A server has stored what clients uploaded, so stored rows are not sent to it again.
                if name in ("trained", "sent", "models") or (stored and not self.num_servers):
                    counted = weights.shares != 0
                    self.ledger.fetch(index[weights.jobs[counted]], weights.rows[counted], mixed=True)
        self._refuse_mixing_starts(sparse, index)
        self.bank.mix(self.received_terms(sparse, index), into, index, columns)

    def combine(
        self, fn: Callable[..., Tensor], sets: Sequence[str], into: str, where: Tensor, columns: Columns | None = None
    ) -> None:
        """Replace nodes' rows by an elementwise function of the same nodes' rows in several sets; costs nothing.

        Args:
            fn: called with a block [k, columns] of each set; returns [k, columns].
            sets: names of row sets, such as sums that `mix` has written into sets made by `bank.scratch`.
            into: `models`, or a set that a policy declared or made by `bank.scratch`.
            where: bool [n] or long [w], the nodes whose rows are written.
            columns: default: the shared columns.
        """
        self.bank.combine(fn, sets, into, where, columns)

    def mix_again(self, weights: Tensor, where: Tensor) -> None:
        """Mix the mixed models of this round once more; each is received, and charged, again.

        Args:
            weights: mixing weights, float64 [len(voters)]; only nodes' rows may have one.
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
        """Replace receivers' rows by a column-wise function of the rows that have a vote; charged as in `mix`.

        A row counts once, however many votes it has. A row of `substitute_rows` is received as a whole model: an update
        is added to the receiver's own model first. Personal columns and the rows of receivers without votes stay.

        Args:
            votes: float64 [len(voters)]; rows with a vote other than 0 are received.
            fn: function [receivers, received, columns] -> [receivers, columns]. A call gets receivers of equally many
                rows and a block of columns; several threads call it.
            into: `models`, or a set that a policy declared.
        """
        n, m = self.num_nodes, self.num_clients
        counted = votes != 0
        all_receivers, rows = self.voters.receivers[counted], self.voters.senders[counted]
        of_nodes = self._of_block(rows, 0)
        receivers, senders = all_receivers[of_nodes], rows[of_nodes]
        foreign = senders != receivers
        entries: list[tuple[str, Tensor, Tensor, str | None]] = [
            ("trained", receivers[~foreign], senders[~foreign], None),
            ("sent", receivers[foreign], senders[foreign], None),
        ]
        charged = [(receivers, senders)]
        for block, substitutes in enumerate(self.substitute_rows, start=1):
            inside = self._of_block(rows, block)
            to, clients = all_receivers[inside], rows[inside] - n - (block - 1) * m
            entries.append((substitutes.rows, to, clients, "models" if substitutes.relative else None))
            if not self.num_servers:  # a server has stored what clients uploaded
                charged.append((to, clients))
        if into == "models":
            for to, nodes in charged:
                self.ledger.fetch(to, nodes, mixed=True)
        self.bank.reduce(entries, fn, into)

    def charge_comparison(
        self, rows: str | Tensor, links: Links, columns: Columns | None = None, relative_to: str | None = None
    ) -> None:
        """Charge each link for what the receiver needs to compare rows; a link from a client to itself costs nothing.

        If the receiver can compute what is compared from the sender's model, the model is charged. This is so for whole
        models, and for their differences from a first model that all clients have in common. Anything else is sent for
        the comparison and charged as a part: a layer, gradients, or the update of a whole model, since only the sender
        knows the model that its training started from. If the model is mixed too, it is a second message.

        With servers, only the uploads of clients to servers are charged: a server compares clients by their uploads.

        Args:
            rows: the rows that are compared; see `compare`.
            links: links between clients.
            columns: the columns that are compared; default: the shared parameters.
            relative_to: what is subtracted from the rows; see `compare`.
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
        """Charge each link for the sender's model from before the round, a message in addition to its trained model."""
        self.ledger.fetch_part("model from before the round", len(self.bank.layout.shared), links)

    def charge_message(self, name: str, links: Links, size: Tensor | int) -> None:
        """Charge each link for a message that is neither a model nor a part of one, for example a summary of data.

        Args:
            name: name of the message. A message of the same name over the same link counts once in a round; a client's
                message to itself costs nothing.
            links: links over which it is sent.
            size: bytes, one number for all links or long [len(links)].
        """
        self.ledger.fetch_message(name, links, size)

    def charge(self, references: References) -> None:
        """Charge the owners of references: each row of another node that they read costs a model.

        Raises:
            UserError: there are Outgoing policies, and a reference reads another client's row of `models`.
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
        """Replace other clients' rows of `trained` by their rows of `sent` in summands of `mix`.

        Args:
            terms: summands, each the weights of rows in w sums and the name of the row set.
            receivers: long [w], the nodes that get the sums.
        """
        if not self.bank.changes_messages:
            return list(terms)
        received: list[tuple[Weights, str]] = []
        for weights, name in terms:
            if name == "trained":
                of_others, of_itself = _split_own(weights, receivers)
                received += [(of_itself, "trained"), (of_others, "sent")]
            else:
                received.append((weights, name))
        return received

    def _as_received(self, references: References) -> list[tuple[Tensor, References]]:
        """Replace other clients' rows of `trained` by their rows of `sent` in references.

        References that read different row sets cannot be in one batch. The result is a list of batches, each with the
        indices of its references, long.
        """
        everything = torch.arange(len(references))
        if not self.bank.changes_messages:
            return [(everything, references)]
        terms: list[Term] = []
        own_rows: list[Tensor] = []  # for each term with single rows of `trained`: True if the row is the owner's
        for term in references.terms:
            if term.rows == "trained" and isinstance(term.which, Weights):
                of_others, of_itself = _split_own(term.which, references.owners)
                terms += [Term("trained", of_itself), Term("sent", of_others)]
            else:
                terms.append(term)
                if term.rows == "trained" and isinstance(term.which, Tensor):
                    own_rows.append(term.which == references.owners)
        # The bits of a reference's pattern tell in which of these terms it reads its owner's row.
        pattern = sum((is_own.long() << bit for bit, is_own in enumerate(own_rows)), torch.zeros_like(everything))
        batches = []
        for kind in pattern.unique().tolist():
            index = torch.nonzero(pattern == kind).squeeze(1)
            bits = iter(range(len(own_rows)))
            read = [
                replace(term, rows="trained" if kind >> next(bits) & 1 else "sent")
                if term.rows == "trained" and isinstance(term.which, Tensor)
                else term
                for term in terms
            ]
            batches.append((index, replace(references, terms=tuple(read)).take(index)))
        return batches

    def _refuse_mixing_starts(self, terms: Sequence[tuple[Weights, str]], receivers: Tensor) -> None:
        """Raise if there are Outgoing policies and a sum mixes another client's row of `models`, which is not sent.

        Only its difference from the model that the client sent may be mixed, so that the two weights add up to 0.
        """
        if not self.has_messages:
            return
        m, n = self.num_clients, self.num_nodes
        read = [(weights, name) for weights, name in terms if name in ("models", "trained", "sent")]
        if not any(name == "models" for _, name in read):
            return
        codes = torch.cat([receivers[weights.jobs] * n + weights.rows for weights, _ in read])
        shares = torch.cat([weights.shares for weights, _ in read])
        starting = torch.cat([torch.full((len(weights.rows),), name == "models") for weights, name in read])
        pairs, index = codes.unique(return_inverse=True)
        zeros = torch.zeros(len(pairs), dtype=torch.float64)
        of_starts, in_all = zeros.index_add(0, index, shares * starting), zeros.index_add(0, index, shares)
        to, of = pairs // n, pairs % n
        unsent = torch.nonzero((of_starts != 0) & (in_all != 0) & (to != of) & (of < m)).squeeze(1)
        if len(unsent):
            self._refuse_unsent(f"mixes client {int(of[unsent[0]])}'s model from before the round's training")

    def _refuse_unsent(self, what: str) -> None:
        raise UserError(
            f"{nth_round(self.index)}: a policy {what}, which no Outgoing policy has passed; "
            "read the row set 'trained' or 'sent', or run without --outgoing"
        )

    def references(self, receivers: Tensor, rows: Tensor) -> References:
        """Refer to the rows that `votes` and `weights` index: trained models, then each of `substitute_rows`.

        Args:
            receivers: long [J], the nodes that mix the rows.
            rows: long [J], all in one block: the n nodes' rows, or the m rows of a set of substitutes.
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


def _split_own(weights: Weights, receivers: Tensor) -> tuple[Weights, Weights]:
    """Separate the weights of other nodes' rows from those of the receivers' own rows.

    Args:
        weights: weights of rows in w sums.
        receivers: long [w], the nodes that get the sums; -1: no node, without a row of its own.
    """
    is_own = weights.rows == receivers[weights.jobs]
    return weights.keep(~is_own), weights.keep(is_own)
