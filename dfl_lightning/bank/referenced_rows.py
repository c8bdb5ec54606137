"""Models by reference: read from rows, and trained into rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial, reduce

import torch
from torch import Tensor

from dfl_lightning.bank.averaging import averages
from dfl_lightning.bank.layout import Columns
from dfl_lightning.bank.mixing import weighted_sums
from dfl_lightning.bank.references import References, Term, Weights
from dfl_lightning.bank.row_sets import RowSets


class ReferencedRows(RowSets):
    """Row sets from which referenced models are read, and into which trained ones are written."""

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
