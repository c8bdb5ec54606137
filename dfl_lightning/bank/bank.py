"""The bank: the models of all nodes as rows of matrices, the boundary between rounds, and the four verbs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dfl_lightning.bank.comparing import Comparison, compare_rows
from dfl_lightning.bank.engine import Engine, Progress, Training
from dfl_lightning.bank.jobs import Evaluation, References, Trained
from dfl_lightning.bank.layout import Columns, Layout
from dfl_lightning.bank.mixing import mix_rows
from dfl_lightning.bank.products import product


class Boundary(NamedTuple):
    """The state between two rounds, replaced by ONE assignment and never written into.

    Everything that a resumed run needs is here: a save at any moment, even inside a signal handler, describes it.

    Args:
        round: rounds completed.
        rows: the persistent row sets, [n, width] each.
        callbacks: copies of the state of every callback.
        metrics: the last round's row of `metrics.csv`.
        evaluation: the last evaluation's arrays per client, empty when the last round had none.
        closed: whether the last round has also been evaluated (where due) and gone through all hooks.
    """

    round: int
    rows: dict[str, Tensor]
    callbacks: dict[str, Any]
    metrics: dict[str, float]
    evaluation: dict[str, Tensor]
    closed: bool = True


@dataclass
class _Work:
    """Buffers of the round in progress; thrown away when it is abandoned."""

    trained: Tensor | None = None
    started: References | None = None
    written: dict[str, Tensor] = field(default_factory=dict)
    scratch: dict[str, Tensor] = field(default_factory=dict)
    mixed: bool = False


class Bank:
    """Row sets and the four verbs `train`, `evaluate`, `compare`, `mix`.

    Nodes are the m clients and, in a server topology, the servers after them. The set `models` always exists; training
    makes `trained`; a policy or objective declares others. Training and mixing write into a second buffer that becomes
    `models` when the round is committed, so the boundary is never half-written.

    Args:
        layout: columns of a row.
        models: initial models, [n, width].
        num_clients: m; rows from m on are servers.
        sets: further row sets by name, each [n, width].

    Attributes:
        timed: name of a verb -> a context that takes its time.
    """

    def __init__(
        self, layout: Layout, models: Tensor, num_clients: int, sets: Mapping[str, Tensor] | None = None
    ) -> None:
        self.layout = layout
        self.num_clients = num_clients
        self.engine: Engine | None = None
        self.boundary = Boundary(0, {"models": models, **(sets or {})}, {}, {}, {})
        self.timed: Callable[[str], AbstractContextManager[None]] = lambda verb: nullcontext()
        self._work = _Work()
        self._spare: Tensor | None = None  # the buffer that training writes next

    # --- row sets ---------------------------------------------------------------------------------------------------
    @property
    def num_nodes(self) -> int:
        """Clients and servers, n."""
        return len(self.boundary.rows["models"])

    def rows(self, name: str) -> Tensor:
        """A row set, [n, width]; read only.

        `models` are the models before this round's training, `trained` those after it (an inactive client's row is
        its model); other sets include what this round has written.

        Raises:
            KeyError: no such set, or `trained` outside of the time between training and mixing.
        """
        if name == "trained":
            if self._work.trained is None or self._work.mixed:
                raise KeyError("'trained' exists from the local training of a round until its mixing only")
            return self._work.trained
        for written in (self._work.written, self._work.scratch):
            if name in written:
                return written[name]
        return self.boundary.rows[name]

    def scratch(self, name: str) -> None:
        """Make a row set of zeros that is gone when the round ends, for `mix` to write into: sums, for example."""
        self._work.scratch[name] = torch.zeros_like(self.boundary.rows["models"])

    def materialise(self, references: References, start: int = 0, stop: int | None = None) -> Tensor:
        """The referenced models' columns `[start, stop)`, [J, stop - start]; see `References`."""
        stop = self.layout.width if stop is None else stop
        value: Tensor | None = None
        for term in references.terms:
            rows = self.rows(term.rows)[:, start:stop]
            which = term.which.to(rows.device)
            part = _weighted(which.to(rows.dtype), rows) if which.is_floating_point() else rows.index_select(0, which)
            value = part if value is None else value + part
        assert value is not None
        for low, high in self.layout.personal.ranges:
            low, high = max(low, start), min(high, stop)
            if low < high:
                value[:, low - start : high - start] = self.rows(references.personal)[references.owners, low:high]
        return value

    def reader(self, references: References) -> Callable[[int, int], Tensor]:
        """A function (start, stop) -> the referenced models' columns, in memory of their own; each is read once.

        Plain rows are read as they are asked for, without a copy of whole rows in between; combinations are put
        together in one go.
        """
        if all(not term.which.is_floating_point() for term in references.terms):
            return partial(self.materialise, references)
        rows = self.materialise(references)
        return lambda start, stop: rows[:, start:stop]

    # --- the four verbs ---------------------------------------------------------------------------------------------
    def train(self, references: References, training: Training, progress: Progress | None = None) -> Trained:
        """Train each owner's model from its reference into `trained`; the others keep their row.

        Args:
            references: where each job starts; one job an owner.
            training: purpose, round, epochs, phases; see `Training`.
            progress: called from the main thread after each cohort with (done, total).
        """
        assert self.engine is not None
        models = self.boundary.rows["models"]
        target = self._spare if self._spare is not None else torch.empty_like(models)
        self._spare = target
        self._work.trained, self._work.mixed = None, False
        if len(references) < len(models):  # else every row is written anyway
            target.copy_(models)
        with self.timed("train"):
            result = self.engine.train(self, references, training, target, progress)
        for owner in references.owners[~result.finite].tolist():
            target[owner] = models[owner]
        self._work.started = references.take(torch.nonzero(result.finite).squeeze(1))
        self._work.trained = target
        return result

    def rehearse(self, references: References, training: Training) -> tuple[Tensor, Trained]:
        """The rows [n, width] that training would leave, and what else it would; nothing is kept of it."""
        assert self.engine is not None
        target = self.boundary.rows["models"].clone()
        with self.timed("train"):
            result = self.engine.train(self, references, training, target, None)
        return target, result

    def gradients(self, references: References, training: Training) -> Tensor:
        """Gradients of the mean loss at the references, [n, width]; nothing is updated, zero rows without a job."""
        assert self.engine is not None
        target = torch.zeros_like(self.boundary.rows["models"])
        with self.timed("train"):
            self.engine.train(self, references, replace(training, gradients=True), target, None)
        return target

    def evaluate(self, references: References, split: str) -> Evaluation:
        """Mean loss and metrics of each reference on its owner's data; owner -1 is the global test set.

        Raises:
            ValueError: owner -1 where parameters are personal: the global test set has none to complete a model with.
        """
        assert self.engine is not None
        if self.layout.has_personal_parameters and bool((references.owners < 0).any()):
            raise ValueError("a model with personal parameters needs an owner; the global test set has none")
        with self.timed("evaluate"):
            return self.engine.evaluate(self, references, split)

    def compare(
        self,
        rows: str | Tensor,
        pairs: Tensor,
        columns: Columns | None = None,
        relative_to: str | None = None,
        centre: bool = False,
    ) -> Comparison:
        """Cosines and distances between clients' rows.

        Args:
            rows: a row set's name, or a matrix such as `gradients` returns.
            pairs: bool [m, m], receiver by sender.
            columns: which columns; default the shared parameters.
            relative_to: nothing, `start` (each job's reference) or a row set: what is subtracted from the rows.
            centre: see `compare_rows`.
        """
        m = self.num_clients
        source = (self.rows(rows) if isinstance(rows, str) else rows)[:m]
        started = self._work.started

        def read(start: int, stop: int) -> Tensor:
            block = source[:, start:stop]
            if relative_to == "start":
                assert started is not None
                block = block.clone()
                block[started.owners] -= self.materialise(started, start, stop)
                idle = torch.ones(m, dtype=torch.bool)
                idle[started.owners] = False
                block[idle] = 0  # who did not train has no update
            elif relative_to is not None:
                block = block - self.rows(relative_to)[:m, start:stop]
            return block

        columns = self.layout.shared_parameters if columns is None else columns
        with self.timed("compare"):
            return compare_rows(read, m, pairs, columns, centre)

    def mix(
        self, terms: Sequence[tuple[Tensor, str]], into: str, where: Tensor, columns: Columns | None = None
    ) -> None:
        """Rows `where` of the set `into` become the sum over terms of weights @ rows.

        `models` after a round are `trained` with the mixed rows written over: mixing into `models` comes last, for it
        reuses the buffer of `trained`.

        Args:
            terms: (weights [w, n], row set) summands.
            into: a persistent set, or one made by `scratch`.
            where: bool [n] or long [w], the rows to write; w of them.
            columns: default the shared columns.
        """
        index = torch.nonzero(where).squeeze(1) if where.dtype == torch.bool else where
        sources = [(weights, self.rows(name)) for weights, name in terms]
        if into == "models":
            target = self.rows("trained")
        elif into in self._work.scratch:
            target = self._work.scratch[into]
        else:
            if into not in self._work.written:
                self._work.written[into] = self.boundary.rows[into].clone()
            target = self._work.written[into]
        with self.timed("mix"):
            mix_rows(sources, target, index.to(target.device), self.layout.shared if columns is None else columns)
        self._work.mixed |= into == "models"

    # --- rounds -----------------------------------------------------------------------------------------------------
    def next_rows(self) -> dict[str, Tensor]:
        """The row sets as they will be after this round."""
        models = self._work.trained if self._work.trained is not None else self.boundary.rows["models"]
        return {**self.boundary.rows, "models": models, **self._work.written}

    def commit(self, boundary: Boundary) -> None:
        """End a round by one assignment; the former models' buffer is what training writes next."""
        former, spare = self.boundary.rows["models"], self._spare
        self._spare = None  # an interruption before the last line must not leave the boundary's rows as the spare
        self.boundary = boundary
        self._spare = former if boundary.rows["models"] is not former else spare
        self._work = _Work()

    def abandon(self) -> None:
        """Forget the round in progress."""
        self._work = _Work()

    # --- devices and checkpoints ------------------------------------------------------------------------------------
    def apply_to_rows(self, fn: Callable[[Tensor], Tensor]) -> None:
        """Apply `fn`, a move to a device, to every row set."""
        self.boundary = self.boundary._replace(rows={name: fn(rows) for name, rows in self.boundary.rows.items()})
        self._spare, self._work = None, _Work()

    def state_dict(self) -> dict[str, Tensor]:
        """The boundary's rows, last evaluation and progress; callbacks and metrics travel beside it."""
        boundary = self.boundary
        state = {f"rows.{name}": rows for name, rows in boundary.rows.items()}
        state |= {f"evaluation.{name}": values for name, values in boundary.evaluation.items()}
        return {**state, "progress": torch.tensor([boundary.round, int(boundary.closed)])}

    def load_state_dict(self, state: Mapping[str, Tensor], metrics: Mapping[str, float]) -> None:
        """Take up a saved boundary; its callbacks load their own state."""
        like = self.boundary.rows["models"]
        round_, closed = state["progress"].tolist()
        rows = {name: state[f"rows.{name}"].to(like.device, like.dtype).clone() for name in self.boundary.rows}
        evaluation = {key.removeprefix("evaluation."): v for key, v in state.items() if key.startswith("evaluation.")}
        self.boundary = Boundary(round_, rows, {}, dict(metrics), evaluation, bool(closed))
        self._spare, self._work = None, _Work()


def _weighted(weights: Tensor, rows: Tensor) -> Tensor:
    """The product weights [J, n] @ rows [n, width]; where few rows have a weight, only these are read."""
    used = torch.nonzero(weights.any(0)).squeeze(1)
    if 2 * len(used) > len(rows):
        return product(weights.contiguous(), rows)
    return product(weights[:, used].contiguous(), rows[used])
