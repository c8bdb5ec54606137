"""Row sets: they are stored, read, written within a round, and replaced between rounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from dfl_lightning.bank.boundary import Boundary, RoundBuffers, Wave
from dfl_lightning.bank.layout import Layout
from dfl_lightning.bank.running_hook import RunningHook
from dfl_lightning.distributed.communicator import Ranks
from dfl_lightning.utils.errors import UserError
from dfl_lightning.utils.words import nth_round


class RowSets:
    """The row sets of all nodes: those of the boundary between rounds, and those that the round in progress writes.

    Nodes are the m clients and, in a server topology, the servers after them. The set `models` always exists. Training
    makes the set `trained`, and other clients receive rows of `sent`, which are those of `trained` unless a policy
    changes them. Policies and objectives declare further sets. Training and mixing write into a second buffer that
    becomes `models` when the round is committed, so the boundary is never half-written.

    If a run has several processes, each has the rows of its own nodes, `ranks.own`, at the indices `ranks.place`. All
    processes call the methods together, with the same small arguments, and get the same small results.

    Args:
        layout: columns of a row.
        models: initial models, [own, width].
        num_clients: m; nodes from m on are servers.
        sets: further row sets by name, each [own, width].
        ranks: the owners of the nodes; default: this process owns them all.
        numbers: initial values of the clients' numbers, by name.

    Attributes:
        cohorts: clients that an engine works on together, long each; the rows of a cohort are mixed in one product.
        device: the device that an engine works on; None: rows stay on their device.
        timed: function of an operation (`train`, `evaluate`, `compare`, `mix`) that returns a context to measure its
            time.
        hook: the hook of a policy or monitor that is running, which limits writes; None: no such hook is running.
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
        initial = {n: torch.full((num_clients,), v, dtype=torch.float64) for n, v in (numbers or {}).items()}
        self.boundary = Boundary(0, {"models": models, **(sets or {})}, {}, {}, {}, numbers=initial)
        self.timed: Callable[[str], AbstractContextManager[None]] = lambda verb: nullcontext()
        self.hook: RunningHook | None = None
        self._work = RoundBuffers()
        self._written = self._versions()
        self._spare: Tensor | None = None  # the buffer that training writes next
        self._wave: Wave | None = None  # what the next wave of the round begins with; None: the boundary
        self._remote: dict[str, tuple[Tensor, Tensor]] = {}  # by row set: indices [n], fetched rows

    # --- row sets ---------------------------------------------------------------------------------------------------
    @property
    def first_rows(self) -> dict[str, Tensor]:
        """The persistent row sets with which the present wave begins; those of the boundary in the first wave."""
        return self.boundary.rows if self._wave is None else self._wave.rows

    @property
    def _first_numbers(self) -> dict[str, Tensor]:
        return self.boundary.numbers if self._wave is None else self._wave.numbers

    @property
    def num_nodes(self) -> int:
        """The number of clients and servers, n."""
        return len(self.ranks.owner)

    def rows(self, name: str) -> Tensor:
        """Return a row set, [own, width], which must not be written; a monitor gets a copy.

        With one process, row i belongs to node i. `models` are the models before this round's training and `trained`
        those after it (the row of an inactive client is its model); `sent` are the models that other clients receive,
        and `mixed` the models as they will be after this round. Other sets include the writes of this round.

        Raises:
            KeyError: the run has no such set; `trained` or `sent` are requested before training or after mixing, or
                `mixed` before the end of mixing.
        """
        rows = self.stored(name)
        return rows if self.hook is None or name in self._work.of_monitors else self.hook.shown(rows)

    def stored(self, name: str) -> Tensor:
        """Return a row set itself, never a copy, for engines and the bank's own operations; see `rows`."""
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
        return self.first_rows[name]

    def number(self, name: str) -> Tensor:
        """Return a number of each client, float64 [m], which must not be written; it includes this round's training.

        Raises:
            KeyError: no policy or objective declares it.
        """
        return self._work.numbers[name] if name in self._work.numbers else self._first_numbers[name]

    def set_number(self, name: str, values: Tensor) -> None:
        """Change a number of each client; the former values stay until the round ends.

        Args:
            name: name of the number.
            values: float64 [m], the same in all processes.
        """
        self._work.numbers[name] = values

    def scratch(self, name: str, dtype: torch.dtype | None = None, of: str | None = None) -> None:
        """Make a row set of zeros that lasts until the round ends, for `mix` to write into: sums, for example.

        Args:
            name: name of the new row set.
            dtype: type of its numbers; default: that of the models.
            of: name of a row set that it starts as a copy of, instead of zeros; it has that set's type.

        Raises:
            UserError: the run has a row set of this name, or a monitor uses the name of a policy's set.
        """
        watches = self.hook is not None and self.hook.watches
        taken = name in self.boundary.rows or name in ("trained", "sent")
        if taken or (watches and name in self._work.scratch and name not in self._work.of_monitors):
            who = "" if self.hook is None else f"{nth_round(self.hook.round)}: {self.hook.who}: "
            raise UserError(f"{who}bank.scratch('{name}') has the name of another row set; choose another name")
        self.join_device()
        models = self.first_rows["models"]
        self._work.scratch[name] = torch.zeros_like(models, dtype=dtype) if of is None else self.stored(of).clone()
        (self._work.of_monitors.add if watches else self._work.of_monitors.discard)(name)

    def adopt(self, name: str, into: str) -> None:
        """Turn a set made by `scratch` into a persistent set as it will be after this round, without a copy.

        Args:
            name: name of the set, which no longer exists afterwards.
            into: the persistent set, not `models`.

        Raises:
            UserError: the hook that is running may not write this set.
        """
        self.check_write(f"bank.adopt('{name}', into='{into}')", into)
        self._work.written[into] = self._work.scratch.pop(name)

    def sets_of_the_round(self) -> dict[str, Tensor]:
        """Return the row sets that this round has made or written so far, without monitors' sets; not copies."""
        work, of_monitors = self._work, self._work.of_monitors
        made = {"trained": work.trained, "sent": work.sent, **work.written}
        made |= {name: rows for name, rows in work.scratch.items() if name not in of_monitors}
        return {name: rows for name, rows in made.items() if rows is not None}

    def next_of(self, name: str) -> Tensor:
        """Return a persistent set as it will be after this round, [own, width], for the caller to write into.

        As with `mix`, writing `models` must come last in a round: new models are written over the rows of `trained`.

        Raises:
            UserError: the hook that is running may not write this set.
            KeyError: the run has no such set, or `models` are requested before the local training.
        """
        self.check_write(f"bank.next_of('{name}')", name)
        if name == "models":
            if self._work.trained is None:
                raise KeyError("new 'models' exist only after the local training of a round")
            self._work.mixed = True
            return self._work.trained
        if name not in self._work.written:
            self._work.written[name] = self.first_rows[name].clone()
        return self._work.written[name]

    def check_write(self, verb: str, name: str) -> None:
        """Raise if the running hook may not write into the row set.

        Args:
            verb: the call, as a user writes it.
            name: name of the row set.

        Raises:
            UserError: see `RunningHook.check_write`.
        """
        if self.hook is not None:
            self.hook.check_write(verb, name, name in self._work.of_monitors)

    # --- nothing is written into a boundary ---------------------------------------------------------------------------
    def _versions(self) -> dict[str, tuple[Tensor, int]]:
        return {name: (rows, rows._version) for name, rows in self.boundary.rows.items()}

    def written_in_place(self) -> str | None:
        """Return the name of a row set of the boundary that was written in place; None: there is none.

        The check compares torch's counts of the writes into each tensor and reads no rows. torch does not count writes
        through `.data` and `.numpy()`.
        """
        for name, rows in self.boundary.rows.items():
            recorded, version = self._written.get(name, (None, 0))
            if recorded is rows and rows._version != version:
                return name
        return None

    # --- what is sent -------------------------------------------------------------------------------------------------
    @property
    def changes_messages(self) -> bool:
        """True if a policy has changed what clients send in this round; otherwise `sent` is `trained`."""
        return self._work.sent is not None

    def change_sent(self, nodes: Tensor) -> Tensor:
        """Return the parameters of the set `sent`, [own, parameters], for the caller to write into.

        They start as those of `trained`. Buffers are not included: they are sent as they are.

        Args:
            nodes: long, the nodes whose rows will differ from those of `trained`; the same in all processes.

        Raises:
            UserError: the hook that is running may not write this set.
        """
        self.check_write("bank.change_sent(nodes)", "sent")
        if self._work.sent is None:
            self._work.sent = self.stored("trained").clone()
            self._work.changed = torch.zeros(self.num_nodes, dtype=torch.bool)
        assert self._work.changed is not None
        self._work.changed[nodes] = True
        return self._work.sent[:, : self.layout.num_parameters]

    # --- rounds -----------------------------------------------------------------------------------------------------
    def end_mixing(self) -> None:
        """Make the set `mixed` available: the models as they will be after this round."""
        self._work.ended = True

    def next_rows(self) -> dict[str, Tensor]:
        """Return the row sets as they will be after this round; a monitor gets copies."""
        sets = {**self.first_rows, "models": self._next_models, **self._work.written}
        return sets if self.hook is None else {name: self.hook.shown(rows) for name, rows in sets.items()}

    @property
    def _next_models(self) -> Tensor:
        return self.first_rows["models"] if self._work.trained is None else self._work.trained

    def next_numbers(self) -> dict[str, Tensor]:
        """Return the clients' numbers as they will be after this round."""
        return {**self._first_numbers, **self._work.numbers}

    def end_wave(self) -> None:
        """End a wave of the round in progress: the next one begins with the rows that this one has made."""
        self._refuse_to_hooks("end_wave")
        former = self.first_rows["models"]
        following = Wave(self.next_rows(), self.next_numbers())
        if self._work.trained is not None:  # the boundary's rows stay, those of an earlier wave become the spare buffer
            self._spare = None if self._wave is None else former
        self._wave, self._work = following, RoundBuffers()

    def commit(self, boundary: Boundary) -> None:
        """End a round by one assignment of its boundary; the next training reuses the buffer of the former models."""
        self._refuse_to_hooks("commit")
        former, spare = self.boundary.rows["models"], self._spare
        # After an interruption between the next lines, the boundary's rows must not be reused as the spare buffer.
        self._spare = None
        self.boundary = boundary
        self._spare = former if boundary.rows["models"] is not former else spare
        self._work, self._wave, self._written = RoundBuffers(), None, self._versions()

    def abandon(self) -> None:
        """Discard the round in progress."""
        self._refuse_to_hooks("abandon")
        if self._wave is not None:
            self._spare = None  # it may be the buffer of the abandoned rows
        self._work, self._wave = RoundBuffers(), None

    def _refuse_to_hooks(self, verb: str) -> None:
        if self.hook is not None:
            raise self.hook.refusal(f"calls bank.{verb}()", "remove the call: only the library ends a round")

    # --- devices and checkpoints ------------------------------------------------------------------------------------
    def apply_to_rows(self, fn: Callable[[Tensor], Tensor]) -> None:
        """Apply `fn`, a move to a device, to every row set."""
        self.boundary = self.boundary._replace(rows={name: fn(rows) for name, rows in self.boundary.rows.items()})
        self._spare, self._work, self._wave, self._written = None, RoundBuffers(), None, self._versions()

    def join_device(self) -> None:
        """Move all row sets to the engine's device, since Lightning moves the module to the CPU after a run."""
        device = self.device
        if device is not None and self.boundary.rows["models"].device != device:
            self.apply_to_rows(lambda rows: rows.to(device))

    def state_dict(self) -> dict[str, Tensor]:
        """Return the boundary's rows in this process, its last evaluation, clients' numbers, progress, and the base.

        Callbacks' states and metrics are saved separately.
        """
        boundary = self.boundary
        state = {f"rows.{name}": rows for name, rows in boundary.rows.items()}
        state |= {f"evaluation.{name}": values for name, values in boundary.evaluation.items()}
        state |= {f"numbers.{name}": values for name, values in boundary.numbers.items()}
        state |= {f"base.{name}": values for name, values in self.layout.base.items()}
        return {**state, "progress": torch.tensor([boundary.round, int(boundary.closed)])}

    def load_state_dict(self, state: Mapping[str, Tensor], metrics: Mapping[str, float]) -> None:
        """Restore a saved boundary; callbacks load their own states.

        Args:
            state: a state that `state_dict` returned, with rows of all nodes: `progress`, `rows.NAME`,
                `evaluation.NAME` and `numbers.NAME`. Its base is that of this run, as their hashes tell.
            metrics: metrics of the last complete round, by name.
        """
        like = self.boundary.rows["models"]
        round_, closed = state["progress"].tolist()
        own = self.ranks.own
        rows = {name: state[f"rows.{name}"][own].to(like.device, like.dtype) for name in self.boundary.rows}
        evaluation = {key.removeprefix("evaluation."): v for key, v in state.items() if key.startswith("evaluation.")}
        # A fork may declare numbers that the checkpoint lacks; they keep their initial values.
        numbers = {n: state.get(f"numbers.{n}", values).double().cpu() for n, values in self.boundary.numbers.items()}
        self.boundary = Boundary(round_, rows, {}, dict(metrics), evaluation, bool(closed), numbers)
        self._spare, self._work, self._wave, self._written = None, RoundBuffers(), None, self._versions()
