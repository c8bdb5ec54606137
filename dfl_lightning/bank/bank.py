"""The bank: the models of all nodes as rows of matrices, and the boundary between rounds; it compares and mixes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial, reduce
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dfl_lightning.bank.averaging import averages
from dfl_lightning.bank.card import one_sentence
from dfl_lightning.bank.layout import Columns, Layout
from dfl_lightning.bank.mixing import mix_rows, weighted_sums
from dfl_lightning.bank.reducing import Received, Reduce, reduce_rows
from dfl_lightning.bank.references import References, Term, Weights
from dfl_lightning.bank.running_hook import RunningHook
from dfl_lightning.bank.similarity import Comparison, compare_rows, compare_sets
from dfl_lightning.distributed.communicator import Ranks
from dfl_lightning.links import Links
from dfl_lightning.utils.errors import UserError
from dfl_lightning.utils.thread_pool import workers
from dfl_lightning.utils.words import nth_round

COMBINED_AT_ONCE = 4096
"""Columns of a block whose rows are combined, entry by entry."""


class Boundary(NamedTuple):
    """The state between two rounds, replaced by ONE assignment and never written into.

    Everything that a resumed run needs is here: a save at any moment, even inside a signal handler, describes it.

    Args:
        round: rounds completed.
        rows: the persistent row sets, [own, width] each: the rows of this process.
        callbacks: copies of the state of every callback.
        metrics: the last round's row of `metrics.csv`.
        evaluation: the last evaluation's arrays per client, empty when the last round had none.
        closed: whether the last round has also been evaluated (where due) and gone through all hooks.
        numbers: the clients' numbers, float64 [m] by name, all of them in every process.
    """

    round: int
    rows: dict[str, Tensor]
    callbacks: dict[str, Any]
    metrics: dict[str, float]
    evaluation: dict[str, Tensor]
    closed: bool = True
    numbers: dict[str, Tensor] = {}  # never written into


@dataclass
class _Work:
    """Buffers of the round in progress; thrown away when it is abandoned."""

    trained: Tensor | None = None
    sent: Tensor | None = None
    changed: Tensor | None = None
    started: References | None = None
    written: dict[str, Tensor] = field(default_factory=dict)
    numbers: dict[str, Tensor] = field(default_factory=dict)
    scratch: dict[str, Tensor] = field(default_factory=dict)
    of_monitors: set[str] = field(default_factory=set)  # names in `scratch`
    mixed: bool = False
    ended: bool = False


class Bank:
    """Row sets, and how they are compared and mixed; engines train and score them.

    Nodes are the m clients and, in a server topology, the servers after them. The set `models` always exists; training
    makes `trained`, of which others see `sent`: the same, unless a policy changes it. A policy or objective declares
    others. Training and mixing write into a second buffer that becomes `models` when the round is committed, so the
    boundary is never half-written.

    Where a run has several processes, each has the rows of its own nodes, `ranks.own`, and `ranks.place` says where;
    all of them call its methods alike, with the same small arguments, and get the same small results.

    Args:
        layout: columns of a row.
        models: initial models, [own, width].
        num_clients: m; nodes from m on are servers.
        sets: further row sets by name, each [own, width].
        ranks: who owns which nodes; default: this process has them all.
        numbers: of each client, by name, and what they begin as.

    Attributes:
        cohorts: clients that an engine works on together, long each; products of a cohort are computed in one piece.
        device: where an engine works on rows; None: where they are.
        timed: what is done (`train`, `evaluate`, `compare`, `mix`) -> a context that takes its time.
        hook: the hook of a policy or monitor that is running, which may not write everything; None: no such hook.
    """

    def __init__(
        self,
        layout: Layout,
        models: Tensor,
        num_clients: int,
        sets: Mapping[str, Tensor] | None = None,
        ranks: Ranks | None = None,
        numbers: Mapping[str, float] | None = None,
    ) -> None:
        self.layout = layout
        self.num_clients = num_clients
        self.ranks = ranks or Ranks.alone(len(models))
        self.cohorts: Sequence[Tensor] = []
        self.device: torch.device | None = None
        begun = {n: torch.full((num_clients,), v, dtype=torch.float64) for n, v in (numbers or {}).items()}
        self.boundary = Boundary(0, {"models": models, **(sets or {})}, {}, {}, {}, numbers=begun)
        self.timed: Callable[[str], AbstractContextManager[None]] = lambda verb: nullcontext()
        self.hook: RunningHook | None = None
        self._work = _Work()
        self._written = self._versions()
        self._spare: Tensor | None = None  # the buffer that training writes next
        self._remote: dict[str, tuple[Tensor, Tensor]] = {}  # of a row set: places [n], rows of other processes

    # --- row sets ---------------------------------------------------------------------------------------------------
    @property
    def num_nodes(self) -> int:
        """Clients and servers, n."""
        return len(self.ranks.owner)

    def rows(self, name: str) -> Tensor:
        """A row set, [own, width]; read only, and for a monitor a copy. With one process, row i is node i's.

        `models` are the models before this round's training, `trained` those after it (an inactive client's row is
        its model), `sent` what of them others get to see, `mixed` the models as they will be after this round; other
        sets include what this round has written.

        Raises:
            KeyError: no such set; `trained` or `sent` outside of the time between training and mixing, or `mixed`
                before the end of mixing.
        """
        rows = self.stored(name)
        return rows if self.hook is None or name in self._work.of_monitors else self.hook.shown(rows)

    def stored(self, name: str) -> Tensor:
        """A row set itself, never a copy: what engines and the bank's own operations work with; see `rows`."""
        if name == "mixed":
            if not self._work.ended:
                raise KeyError("'mixed' exists from the mixing of a round until its end only")
            return self._next_models
        if name in ("trained", "sent"):
            if self._work.trained is None or self._work.mixed:
                raise KeyError(f"'{name}' exists from the local training of a round until its mixing only")
            return self._work.trained if name == "trained" or self._work.sent is None else self._work.sent
        for written in (self._work.written, self._work.scratch):
            if name in written:
                return written[name]
        return self.boundary.rows[name]

    def number(self, name: str) -> Tensor:
        """A number of each client, float64 [m]; read only. With what this round's training has made of it.

        Raises:
            KeyError: it is not declared.
        """
        return self._work.numbers[name] if name in self._work.numbers else self.boundary.numbers[name]

    def scratch(self, name: str, dtype: torch.dtype | None = None) -> None:
        """Make a row set of zeros that lasts until the round ends, for `mix` to write into: sums, for example.

        Args:
            name: of the new row set.
            dtype: of its numbers; default: that of the models.

        Raises:
            UserError: the run has a row set of this name, or a monitor takes the name of a policy's.
        """
        watches = self.hook is not None and self.hook.watches
        taken = name in self.boundary.rows or name in ("trained", "sent")
        if taken or (watches and name in self._work.scratch and name not in self._work.of_monitors):
            who = "" if self.hook is None else f"{nth_round(self.hook.round)}: {self.hook.who}: "
            raise UserError(f"{who}bank.scratch('{name}') has the name of another row set; choose one of your own")
        self.join_device()
        self._work.scratch[name] = torch.zeros_like(self.boundary.rows["models"], dtype=dtype)
        (self._work.of_monitors.add if watches else self._work.of_monitors.discard)(name)

    def sets_of_the_round(self) -> dict[str, Tensor]:
        """Row sets that the round has made or written so far, themselves, but for those of monitors."""
        work, own = self._work, self._work.of_monitors
        made = {"trained": work.trained, "sent": work.sent, **work.written}
        made |= {name: rows for name, rows in work.scratch.items() if name not in own}
        return {name: rows for name, rows in made.items() if rows is not None}

    def next_of(self, name: str) -> Tensor:
        """A persistent set as it will be after this round, [own, width], to be written into.

        As `mix`, with `models` it comes last: the new models are written over those of `trained`.

        Raises:
            UserError: the hook that is running may not write it.
            KeyError: no such set, or `models` before the local training.
        """
        self.check_write(f"bank.next_of('{name}')", name)
        if name == "models":
            if self._work.trained is None:
                raise KeyError("new 'models' exist from the local training of a round on")
            self._work.mixed = True
            return self._work.trained
        if name not in self._work.written:
            self._work.written[name] = self.boundary.rows[name].clone()
        return self._work.written[name]

    def check_write(self, verb: str, name: str) -> None:
        """Refuse a write into a row set that is not the running hook's to write.

        Args:
            verb: what was called, as a user writes it.
            name: of the row set.

        Raises:
            UserError: see `RunningHook.check_write`.
        """
        if self.hook is not None:
            self.hook.check_write(verb, name, name in self._work.of_monitors)

    # --- nothing is written into a boundary ---------------------------------------------------------------------------
    def _versions(self) -> dict[str, tuple[Tensor, int]]:
        return {name: (rows, rows._version) for name, rows in self.boundary.rows.items()}

    def written_in_place(self) -> str | None:
        """The row set of the boundary that was written into since it was made; None: there is none.

        torch counts the writes into each tensor, so that nothing is read for this. It does not count those through
        `.data` and `.numpy()`.
        """
        for name, rows in self.boundary.rows.items():
            known, version = self._written.get(name, (None, 0))
            if known is rows and rows._version != version:
                return name
        return None

    # --- what is sent -------------------------------------------------------------------------------------------------
    @property
    def changes_messages(self) -> bool:
        """Whether a client sends in this round what it has not trained; otherwise `sent` is `trained`."""
        return self._work.sent is not None

    def change_sent(self, nodes: Tensor) -> Tensor:
        """The parameters of the set `sent`, [own, parameters], to be written into: at first those of `trained`.

        Buffers are out of reach: they are sent as they are.

        Args:
            nodes: long, whose rows will be others than those of `trained`; the same in all processes.

        Raises:
            UserError: the hook that is running may not write it.
        """
        self.check_write("bank.change_sent(nodes)", "sent")
        if self._work.sent is None:
            self._work.sent = self.stored("trained").clone()
            self._work.changed = torch.zeros(self.num_nodes, dtype=torch.bool)
        assert self._work.changed is not None
        self._work.changed[nodes] = True
        return self._work.sent[:, : self.layout.num_parameters]

    def _starts_here(self) -> References:
        """Where this process's nodes started the round's training from; empty where none did."""
        started = self._work.started
        if started is None:
            return References.rows("models", torch.empty(0, dtype=torch.long))
        return started.take(torch.nonzero(self.ranks.at_home(started.owners)).squeeze(1))

    @contextmanager
    def starts(self) -> Iterator[Callable[[Tensor], Callable[[int, int], Tensor]]]:
        """Inside, a function: nodes of this process, long [k] -> (start, stop) -> columns of their starts, [k, c].

        A node's start is the reference that its training of this round started from, its row of `models` where it did
        not train. All processes enter at once.
        """
        jobs = self._starts_here()
        job_of = torch.full((self.num_nodes,), -1)
        job_of[jobs.owners] = torch.arange(len(jobs))

        def of(nodes: Tensor) -> Callable[[int, int], Tensor]:
            trained = job_of[nodes] >= 0
            mine = jobs.take(job_of[nodes[trained]])

            def read(start: int, stop: int) -> Tensor:
                block = self._take("models", nodes, start, stop)
                if len(mine):
                    block[trained.to(block.device)] = self.materialise(mine, start, stop)
                return block

            return read

        with self.with_remote_rows(jobs):
            yield of

    def materialise(self, references: References, start: int = 0, stop: int | None = None) -> Tensor:
        """The referenced models' columns `[start, stop)`, [J, stop - start]; see `References`.

        Their buffers are averages, whatever their parameters are; see `bank.averaging`.

        Args:
            references: J models.
            start: first column.
            stop: end of the columns; default: the width of a row.
        """
        stop = self.layout.width if stop is None else stop
        value = self._summed(references.terms, start, stop)
        here = self.layout.shared_buffers.common(Columns([(start, stop)])).ranges
        if here and (len(references.terms) > 1 or isinstance(references.terms[0].which, Weights)):
            terms = [(term.weights(self.num_nodes), term.rows) for term in references.terms]
            averaged = self._averages(terms, references.owners)
            if averaged is not terms:
                of_buffers = [Term(name, weights) for weights, name in averaged]
                for low, high in here:
                    value[:, low - start : high - start] = self._summed(of_buffers, low, high)
        for low, high in self.layout.personal.ranges:
            low, high = max(low, start), min(high, stop)
            if low < high:
                value[:, low - start : high - start] = self._take(references.personal, references.owners, low, high)
        return value

    def _summed(self, terms: Sequence[Term], start: int, stop: int) -> Tensor:
        """Columns `[start, stop)` of the sums over terms, [J, stop - start]; in memory of their own."""

        def part(term: Term) -> Tensor:
            if isinstance(term.which, Weights):
                return self._weighted(term.rows, term.which, start, stop)
            return self._take(term.rows, term.which, start, stop)

        return reduce(torch.add, map(part, terms))

    def _averages(
        self, terms: Sequence[tuple[Weights, str]], nodes: Tensor, into: str = ""
    ) -> Sequence[tuple[Weights, str]]:
        """The summands of buffers; `terms` itself, where they are the same.

        Args:
            terms: (weights of nodes' rows in w sums, row set) summands.
            nodes: whose rows, or models, the sums are, long [w].
            into: the set that they are written to; sets made by `scratch` hold plain sums.
        """
        if any(name in self._work.scratch for name in (into, *(name for _, name in terms))):
            return terms
        return averages(terms, nodes, self.num_clients)

    def _take(self, name: str, nodes: Tensor, start: int, stop: int) -> Tensor:
        """Columns `[start, stop)` of the nodes' rows, [len(nodes), stop - start]; a copy."""
        rows, places = self.stored(name), self.ranks.place[nodes]
        away = places < 0
        if not away.any():
            return rows[:, start:stop].index_select(0, places.to(rows.device))
        slots, remote = self._remote[name]
        taken = rows.new_empty(len(nodes), stop - start)
        taken[~away] = rows[:, start:stop][places[~away].to(rows.device)]
        taken[away] = remote[:, start:stop][slots[nodes[away]].to(rows.device)]
        return taken

    def _weighted(self, name: str, weights: Weights, start: int, stop: int) -> Tensor:
        """The sums weights @ rows; only rows that have a weight are read."""
        used, places = weights.rows.unique(return_inverse=True)
        rows, shape = self.stored(name), (len(weights), len(used))
        here = self.ranks.count == 1 and len(used) == len(rows)
        block = rows[:, start:stop] if here else self._take(name, used, start, stop)
        receivers, shares = weights.jobs.to(block.device), weights.shares.to(block.device, block.dtype)
        return weighted_sums(receivers, places.to(block.device), shares, shape)(block)

    @contextmanager
    def with_remote_rows(self, references: References) -> Iterator[None]:
        """The rows of other processes that these references read are here; all processes do this at once."""
        if self.ranks.count > 1:
            for name in dict.fromkeys(term.rows for term in references.terms):
                read = torch.cat([term.read for term in references.terms if term.rows == name]).unique()
                wanted = read[self.ranks.place[read] < 0]
                exchange = self.ranks.row_exchange(wanted)
                if exchange.any:
                    slots = torch.full((self.num_nodes,), -1)
                    slots[wanted] = torch.arange(len(wanted))
                    self._remote[name] = (slots, exchange.bring(self.stored(name)))
        try:
            yield
        finally:
            self._remote = {}

    def reader(self, references: References) -> Callable[[int, int], Tensor]:
        """A function (start, stop) -> the referenced models' columns, in memory of their own; each is read once.

        Plain rows are read as they are asked for, without a copy of whole rows in between; combinations are put
        together in one go.
        """
        if not any(isinstance(term.which, Weights) for term in references.terms):
            return partial(self.materialise, references)
        rows = self.materialise(references)
        return lambda start, stop: rows[:, start:stop]

    # --- what engines write -----------------------------------------------------------------------------------------
    def begin_training(self, jobs: int) -> Tensor:
        """The buffer of the round's `trained`, [own, width], for an engine to write; rows without a job are there.

        Args:
            jobs: how many nodes will be trained.

        Raises:
            UserError: a monitor asks for it.
        """
        self.check_write("engine.train(...)", "trained")
        self.join_device()
        models = self.boundary.rows["models"]
        target = self._spare if self._spare is not None else torch.empty_like(models)
        self._spare = target
        self._work.trained = self._work.sent = self._work.changed = None
        self._work.mixed = False
        if jobs < self.num_nodes:  # else every row is written anyway
            target.copy_(models)
        return target

    def end_training(
        self,
        rows: Mapping[str, Tensor],
        references: References,
        finite: Tensor,
        numbers: Mapping[str, Tensor] | None = None,
    ) -> None:
        """The trained rows become the round's; a job that was not finite leaves its owner's former rows.

        Args:
            rows: by row set, [own, width]; `models` is what `begin_training` gave.
            references: where the jobs started.
            finite: bool [J].
            numbers: of the jobs' owners, float64 [J] by name.
        """
        for name, values in (numbers or {}).items():
            self._work.numbers[name] = self.number(name).index_copy(0, references.owners[finite], values[finite])
        lost = self.ranks.place[references.owners[~finite]]
        places = lost[lost >= 0].to(rows["models"].device)
        for name, written in rows.items():
            if len(places):
                written[places] = self.stored(name)[places]
            if name != "models":
                self._work.written[name] = written
        self._work.started = references.take(torch.nonzero(finite).squeeze(1))
        self._work.trained = rows["models"]

    def undo_training(self, references: References) -> None:
        """The owners' rows of `trained` become the references that their training started from."""
        jobs = references.take(torch.nonzero(self.ranks.at_home(references.owners)).squeeze(1))
        trained = self.stored("trained")
        with self.with_remote_rows(jobs):
            trained[self.ranks.place[jobs.owners].to(trained.device)] = self.materialise(jobs)

    # --- comparing and mixing ---------------------------------------------------------------------------------------
    def compare(
        self,
        rows: str | Tensor,
        links: Links,
        columns: Columns | None = None,
        relative_to: str | None = None,
        centre: bool = False,
        to: str | None = None,
        own: str | None = None,
    ) -> Comparison:
        """Cosines and distances between clients' rows, one of each a link.

        Args:
            rows: a row set's name, or a matrix such as `gradients` returns.
            links: of clients, whom each receiver compares itself with.
            columns: which columns; default the shared parameters.
            relative_to: nothing, `start` (each job's reference) or a row set: what is subtracted from the rows; of a
                sender, by the sender itself.
            centre: see `compare_rows`.
            to: `sent`: the rows of senders are those of this set, but for the row of who compares it with itself.
            own: the row set of the receivers' own rows; default: `rows`.
        """
        mine = self.ranks.own[self.ranks.own < self.num_clients]
        sets: list[str | Tensor] = [rows]
        which, told = torch.zeros(len(links), dtype=torch.long), torch.ones(self.num_clients, dtype=torch.bool)
        changed = self._work.changed if to == "sent" else None
        if changed is not None:
            sets, changed = [rows, "sent"], changed[: self.num_clients]
            which += changed[links.senders] & (links.receivers != links.senders)
            told = torch.cat([~changed, told])
        if own is not None:
            sets, which, told = [own, *sets], which + 1, torch.cat([torch.zeros(self.num_clients).bool(), told])
        sources = [(self.stored(one) if isinstance(one, str) else one)[: len(mine)] for one in sets]
        source = sources[0]
        moving = None
        if relative_to == "start":
            moving = self._starts_here()
            moved = self.ranks.place[moving.owners].to(source.device)
            idle = torch.ones(len(mine), dtype=torch.bool, device=source.device)
            idle[moved] = False

        def moved_by(source: Tensor, start: int, stop: int) -> Tensor:
            block = source[:, start:stop]
            if moving is not None:
                block = block.clone()
                block[moved] -= self.materialise(moving, start, stop)
                block[idle] = 0  # who did not train has no update
            elif relative_to is not None:
                block = block - self.stored(relative_to)[: len(mine), start:stop]
            return block

        def read(start: int, stop: int) -> Tensor:
            blocks = [moved_by(source, start, stop) for source in sources]
            return blocks[0] if len(blocks) == 1 else torch.cat(blocks)

        columns = self.layout.shared_parameters if columns is None else columns
        with self.timed("compare"), one_sentence(), nullcontext() if moving is None else self.with_remote_rows(moving):
            if len(sets) == 1:
                return compare_rows(read, self.num_clients, links, columns, centre, self.ranks)
            with self.ranks.repeated(self.num_clients, len(sets)) as ranks:
                return compare_sets(read, self.num_clients, links, which, told, columns, centre, ranks)

    def mix(
        self, terms: Sequence[tuple[Weights | Tensor, str]], into: str, where: Tensor, columns: Columns | None = None
    ) -> None:
        """Rows `where` of the set `into` become the sum over terms of weights @ rows; of buffers, the average.

        On the columns of buffers a combination is an average even where it is none on the parameters (see
        `bank.averaging`), unless a set made by `scratch` takes part, which holds plain sums.

        `models` after a round are `trained` with the mixed rows written over: mixing into `models` comes last, for it
        reuses the buffer of `trained`.

        Args:
            terms: (weights of nodes' rows in w sums, or a matrix [w, n]; row set) summands.
            into: a persistent set, or one made by `scratch`.
            where: bool [n] or long [w], the nodes whose rows are written; w of them.
            columns: default the shared columns.

        Raises:
            UserError: the hook that is running may not write it.
        """
        self.check_write(f"mix(..., into='{into}')", into)
        index = torch.nonzero(where).squeeze(1) if where.dtype == torch.bool else where
        columns = self.layout.shared if columns is None else columns
        summands: Sequence[tuple[Weights, str]] = [(Weights.of(weights), name) for weights, name in terms]
        parts, buffers = [(summands, columns)], columns.common(self.layout.buffers)
        if buffers.ranges and len(index):
            averaged = self._averages(summands, index, into)
            if averaged is not summands:
                parts = [(summands, columns.common(self.layout.parameters)), (averaged, buffers)]
        sources = [([(weights, self.stored(name)) for weights, name in several], some) for several, some in parts]
        target = self._target(into)
        with self.timed("mix"), one_sentence():
            for several, some in sources:
                mix_rows(several, target, index, some, self.ranks, self.mixing_groups())
        self._work.mixed |= into == "models"

    def reduce(self, entries: Sequence[tuple[str, Tensor, Tensor, str | None]], fn: Reduce, into: str) -> None:
        """Shared columns of receivers' rows become a function of the rows that they receive; see `reduce_rows`.

        Of buffers the function gets those of the sets as they are: own rows are added to parameters only. As `mix`,
        with `models` it comes last.

        Args:
            entries: (row set, receivers long [e], nodes long [e], a set of which the receiver's own row is added); the
                same in all processes.
            fn: [receivers, received, columns] -> [receivers, columns].
            into: `models`, or a persistent set.

        Raises:
            UserError: the hook that is running may not write it.
        """
        self.check_write(f"reduce(..., into='{into}')", into)
        received = [
            Received(self.stored(name), receivers, nodes, None if added is None else self.stored(added))
            for name, receivers, nodes, added in entries
            if len(receivers)
        ]
        target = self._target(into)
        with self.timed("mix"), one_sentence():
            if received:
                reduce_rows(
                    *(received, fn, target, self.layout.shared, self.ranks, self.mixing_groups()),
                    self.layout.num_parameters,
                )
        self._work.mixed |= into == "models"

    def combine(
        self, fn: Callable[..., Tensor], sets: Sequence[str], into: str, where: Tensor, columns: Columns | None = None
    ) -> None:
        """Rows of nodes become a function of their own rows of several sets, entry by entry.

        As `mix`, with `models` it comes last.

        Args:
            fn: a block [k, columns] of each set -> [k, columns].
            sets: names of the row sets, in the order of the arguments of `fn`.
            into: `models`, a persistent set, or one made by `scratch`.
            where: bool [n] or long [w], the nodes.
            columns: default the shared columns.

        Raises:
            UserError: the hook that is running may not write it.
        """
        nodes = torch.nonzero(where).squeeze(1) if where.dtype == torch.bool else where
        places = self.ranks.place[nodes[self.ranks.at_home(nodes)]]
        self.check_write(f"combine(..., into='{into}')", into)
        sources = [self.stored(name) for name in sets]
        target = self._target(into)
        places = places.to(target.device)
        with self.timed("mix"), one_sentence(), self.ranks.together():
            for start, stop in (self.layout.shared if columns is None else columns).blocks(COMBINED_AT_ONCE):
                if len(places):
                    blocks = [source[:, start:stop].index_select(0, places) for source in sources]
                    target[:, start:stop].index_copy_(0, places, fn(*blocks).to(target.dtype))
        self._work.mixed |= into == "models"

    def _target(self, into: str) -> Tensor:
        """The rows that a verb writes."""
        if into == "models":
            return self.stored("trained")
        return self._work.scratch[into] if into in self._work.scratch else self.next_of(into)

    def mix_again(self, weights: Weights, where: Tensor) -> None:
        """Mix the models that have been mixed already; see `mix`.

        Args:
            weights: of nodes' rows in w sums.
            where: long [w], the nodes whose rows are written.

        Raises:
            UserError: the hook that is running may not write them.
        """
        self.check_write("mix_again(...)", "models")
        models = self._next_models
        with self.timed("mix"), one_sentence():
            mix_rows([(weights, models)], models, where, self.layout.shared, self.ranks, self.mixing_groups())

    def squared_lengths(self, name: str, where: Tensor, columns: Columns | None = None) -> Tensor:
        """Squared Euclidean norms of nodes' rows.

        Args:
            name: of the row set.
            where: the nodes, long [w].
            columns: those that count; default: the shared ones.

        Returns:
            float64 [w], the same in every process.
        """
        mine = torch.nonzero(self.ranks.at_home(where)).squeeze(1)
        rows, ranges = self.stored(name), (self.layout.shared if columns is None else columns).ranges
        squares = torch.zeros(len(where), dtype=torch.float64)
        if not len(mine) or not ranges:
            return self.ranks.join(mine, [squares])[0]
        with workers():  # one thread: bits of a sum depend on how many share it
            parts = [
                rows[place, start:stop].double().square().sum()
                for place in self.ranks.place[where[mine]].tolist()
                for start, stop in ranges
            ]
        for part in torch.stack(parts).cpu().view(len(mine), len(ranges)).unbind(1):  # a GPU is waited for once
            squares[mine] += part
        return self.ranks.join(mine, [squares])[0]

    def mixing_groups(self) -> Tensor:
        """Receivers whose products are computed in one piece, whatever the number of processes: cohorts; long [n]."""
        mixing_groups = torch.arange(self.num_nodes)
        for cohort in self.cohorts:
            mixing_groups[cohort] = cohort[0]
        return mixing_groups

    # --- rounds -----------------------------------------------------------------------------------------------------
    def end_mixing(self) -> None:
        """From now on the set `mixed` are the models as they will be after this round."""
        self._work.ended = True

    def next_rows(self) -> dict[str, Tensor]:
        """The row sets as they will be after this round; for a monitor copies."""
        rows = {**self.boundary.rows, "models": self._next_models, **self._work.written}
        return rows if self.hook is None else {name: self.hook.shown(found) for name, found in rows.items()}

    @property
    def _next_models(self) -> Tensor:
        return self.boundary.rows["models"] if self._work.trained is None else self._work.trained

    def next_numbers(self) -> dict[str, Tensor]:
        """The clients' numbers as they will be after this round."""
        return {**self.boundary.numbers, **self._work.numbers}

    def commit(self, boundary: Boundary) -> None:
        """End a round by one assignment; the former models' buffer is what training writes next."""
        self._refuse_to_hooks("commit")
        former, spare = self.boundary.rows["models"], self._spare
        self._spare = None  # an interruption before the last line must not leave the boundary's rows as the spare
        self.boundary = boundary
        self._spare = former if boundary.rows["models"] is not former else spare
        self._work, self._written = _Work(), self._versions()

    def abandon(self) -> None:
        """Forget the round in progress."""
        self._refuse_to_hooks("abandon")
        self._work = _Work()

    def _refuse_to_hooks(self, verb: str) -> None:
        if self.hook is not None:
            raise self.hook.refusal(f"calls bank.{verb}()", "only the round itself ends a round")

    # --- devices and checkpoints ------------------------------------------------------------------------------------
    def apply_to_rows(self, fn: Callable[[Tensor], Tensor]) -> None:
        """Apply `fn`, a move to a device, to every row set."""
        self.boundary = self.boundary._replace(rows={name: fn(rows) for name, rows in self.boundary.rows.items()})
        self._spare, self._work, self._written = None, _Work(), self._versions()

    def join_device(self) -> None:
        """Rows go where they are worked on: after a run Lightning takes them, with the module, to the CPU."""
        device = self.device
        if device is not None and self.boundary.rows["models"].device != device:
            self.apply_to_rows(lambda rows: rows.to(device))

    def state_dict(self) -> dict[str, Tensor]:
        """The boundary's rows in this process, last evaluation and progress; callbacks and metrics travel beside it."""
        boundary = self.boundary
        state = {f"rows.{name}": rows for name, rows in boundary.rows.items()}
        state |= {f"evaluation.{name}": values for name, values in boundary.evaluation.items()}
        state |= {f"numbers.{name}": values for name, values in boundary.numbers.items()}
        return {**state, "progress": torch.tensor([boundary.round, int(boundary.closed)])}

    def load_state_dict(self, state: Mapping[str, Tensor], metrics: Mapping[str, float]) -> None:
        """Restore a saved boundary, of all nodes; callbacks load their own state.

        Args:
            state: as `state_dict` made it: `progress`, `rows.NAME`, with a row for every node, `evaluation.NAME` and
                `numbers.NAME`.
            metrics: of the last complete round, by name.
        """
        like = self.boundary.rows["models"]
        round_, closed = state["progress"].tolist()
        own = self.ranks.own
        rows = {name: state[f"rows.{name}"][own].to(like.device, like.dtype) for name in self.boundary.rows}
        evaluation = {key.removeprefix("evaluation."): v for key, v in state.items() if key.startswith("evaluation.")}
        numbers = {name: state[f"numbers.{name}"].double().cpu() for name in self.boundary.numbers}
        self.boundary = Boundary(round_, rows, {}, dict(metrics), evaluation, bool(closed), numbers)
        self._spare, self._work, self._written = None, _Work(), self._versions()
