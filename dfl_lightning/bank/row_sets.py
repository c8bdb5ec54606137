"""Row sets: stored, read, written within a round, and replaced between rounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from dfl_lightning.bank.boundary import Boundary, RoundBuffers
from dfl_lightning.bank.layout import Layout
from dfl_lightning.bank.running_hook import RunningHook
from dfl_lightning.distributed.communicator import Ranks
from dfl_lightning.utils.errors import UserError
from dfl_lightning.utils.words import nth_round


class RowSets:
    """The row sets of all nodes: the boundary between rounds, and what the round in progress makes of it.

    Nodes are the m clients and, in a server topology, the servers after them. The set `models` always exists; training
    makes `trained`; others see `sent`: the same, unless a policy changes it. A policy or objective declares others.
    Training and mixing write into a second buffer that becomes `models` when the round is committed, so the boundary is
    never half-written.

    If a run has several processes, each has the rows of its own nodes, `ranks.own`, and `ranks.place` says where; all
    of them call the methods alike, with the same small arguments, and get the same small results.

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
        self._work = RoundBuffers()
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
        self._work, self._written = RoundBuffers(), self._versions()

    def abandon(self) -> None:
        """Forget the round in progress."""
        self._refuse_to_hooks("abandon")
        self._work = RoundBuffers()

    def _refuse_to_hooks(self, verb: str) -> None:
        if self.hook is not None:
            raise self.hook.refusal(f"calls bank.{verb}()", "only the round itself ends a round")

    # --- devices and checkpoints ------------------------------------------------------------------------------------
    def apply_to_rows(self, fn: Callable[[Tensor], Tensor]) -> None:
        """Apply `fn`, a move to a device, to every row set."""
        self.boundary = self.boundary._replace(rows={name: fn(rows) for name, rows in self.boundary.rows.items()})
        self._spare, self._work, self._written = None, RoundBuffers(), self._versions()

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
        self._spare, self._work, self._written = None, RoundBuffers(), self._versions()
