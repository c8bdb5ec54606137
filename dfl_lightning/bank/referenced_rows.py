"""Model references: models are read from rows, and trained models are written into rows."""

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
        """Return the references that this process's nodes started the round's training from; empty if none trained."""
        started = self._work.started
        if started is None:
            return References.rows("models", torch.empty(0, dtype=torch.long))
        return started.take(torch.nonzero(self.ranks.at_home(started.owners)).squeeze(1))

    @contextmanager
    def starts(self) -> Iterator[Callable[[Tensor], Callable[[int, int], Tensor]]]:
        """Fetch the models that this round's training started from, and yield a function that reads them.

        The function takes nodes of this process, long [k], and returns a function (start, stop) -> the columns of
        their starts, [k, stop - start]. The start of a node that did not train is its row of `models`. All processes
        must enter the context together.
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
        """Compute the columns `[start, stop)` of the referenced models, [J, stop - start]; see `References`.

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
        """Compute the columns `[start, stop)` of the sums over terms; a new tensor, [J, stop - start]."""

        def part(term: Term) -> Tensor:
            if isinstance(term.which, Weights):
                return self._weighted(term.rows, term.which, start, stop)
            return self._take(term.rows, term.which, start, stop)

        return reduce(torch.add, map(part, terms))

    def _averages(
        self, terms: Sequence[tuple[Weights, str]], nodes: Tensor, into: str = ""
    ) -> Sequence[tuple[Weights, str]]:
        """Replace the weights by those of an average, for the buffer columns; see `bank.averaging`.

        Args:
            terms: summands, each the weights of nodes' rows in w sums and the name of the row set.
            nodes: long [w], the nodes that get the sums.
            into: the set that the sums are written to. A set made by `scratch` holds plain sums: if one takes part,
                `terms` are returned as they are.
        """
        if any(name in self._work.scratch for name in (into, *(name for _, name in terms))):
            return terms
        return averages(terms, nodes, self.num_clients)

    def _take(self, name: str, nodes: Tensor, start: int, stop: int) -> Tensor:
        """Copy the columns `[start, stop)` of the nodes' rows, [len(nodes), stop - start]."""
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
        """Compute the columns `[start, stop)` of weights @ rows; only rows that have a weight are read."""
        used, places = weights.rows.unique(return_inverse=True)
        rows, shape = self.stored(name), (len(weights), len(used))
        here = self.ranks.count == 1 and len(used) == len(rows)
        block = rows[:, start:stop] if here else self._take(name, used, start, stop)
        receivers, shares = weights.jobs.to(block.device), weights.shares.to(block.device, block.dtype)
        return weighted_sums(receivers, places.to(block.device), shares, shape)(block)

    @contextmanager
    def with_remote_rows(self, references: References) -> Iterator[None]:
        """Fetch the rows of other processes that these references read, for use inside the context.

        All processes must enter the context together.
        """
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
        """Return a function (start, stop) -> these columns of the referenced models, for reading each column once.

        Plain rows are read when their columns are requested, without a copy of whole rows; combinations of rows are
        computed at once.
        """
        if not any(isinstance(term.which, Weights) for term in references.terms):
            return partial(self.materialise, references)
        rows = self.materialise(references)
        return lambda start, stop: rows[:, start:stop]

    # --- what engines write -----------------------------------------------------------------------------------------
    def begin_training(self, jobs: int) -> Tensor:
        """Prepare the buffer of the round's `trained`, [own, width], and return it for an engine to write.

        If not all nodes train, the buffer starts as a copy of `models`.

        Args:
            jobs: number of nodes that will be trained.

        Raises:
            UserError: the caller is a monitor's hook.
        """
        self.check_write("engine.train(...)", "trained")
        self.join_device()
        models = self.first_rows["models"]
        target = self._spare if self._spare is not None else torch.empty_like(models)
        self._spare = target
        self._work.trained = self._work.sent = self._work.changed = None
        self._work.mixed = False
        if jobs < self.num_nodes:  # otherwise the engine writes every row
            target.copy_(models)
        return target

    def end_training(
        self,
        rows: Mapping[str, Tensor],
        references: References,
        finite: Tensor,
        numbers: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Take over the trained rows and numbers; the owner of a job that diverged keeps its former ones.

        Args:
            rows: rows by row set, [own, width]; `models` is the buffer that `begin_training` returned.
            references: the models that the J jobs started from.
            finite: bool [J], False for a job that diverged.
            numbers: new numbers of the jobs' owners by name, float64 [J].
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
        """Reset the owners' rows of `trained` to the models that their training started from."""
        jobs = references.take(torch.nonzero(self.ranks.at_home(references.owners)).squeeze(1))
        trained = self.stored("trained")
        with self.with_remote_rows(jobs):
            trained[self.ranks.place[jobs.owners].to(trained.device)] = self.materialise(jobs)
