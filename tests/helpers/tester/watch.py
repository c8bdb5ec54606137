"""Checksums of all row sets around what a round does: rows change by what says that it writes them, and else never."""

import contextlib
import functools
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

from torch import Tensor

from dfl_lightning import protocol
from dfl_lightning.utils.storage.checksums import checksum
from tester.rounds import Run

READING = {"bank": ("compare", "squared_lengths"), "engine": ("evaluate", "gradients", "outputs")}
"""Verbs that write nothing."""

WRITING = {
    "bank": ("mix", "mix_again", "combine", "reduce", "next_of", "scratch", "change_sent"),
    "engine": ("rehearse",),
}
"""Verbs that write the row set that they name."""


class RowWatch:
    """Watch over the rows of a run.

    Args:
        run: that is watched.

    Attributes:
        seen: how often each verb and each hook was watched.
    """

    def __init__(self, run: Run) -> None:
        self.run, self.seen = run, dict[str, int]()
        self._written: set[str] = set()  # row sets that verbs have written since the last check

    def sums(self, *more: Any) -> dict[str, int]:
        """Checksums of all row sets, and of matrices besides."""
        bank = self.run.bank
        sets = {f"boundary {name}": rows for name, rows in bank.boundary.rows.items()}
        sets |= {name: rows for name in ("trained", "sent") if (rows := getattr(bank._work, name)) is not None}
        sets |= {**bank._work.written, **bank._work.scratch}
        sets |= {f"argument {place}": each for place, each in enumerate(more) if isinstance(each, Tensor)}
        return {name: checksum(rows) for name, rows in sets.items()}

    @contextlib.contextmanager
    def still(self, what: str, *more: Any) -> Iterator[None]:
        """Inside, nothing changes but what a verb says that it writes."""
        before, outside, self._written = self.sums(*more), self._written, set()
        yield
        after = self.sums(*more)
        changed = {name for name in before if before[name] != after.get(name, before[name])}
        if "models" in self._written:
            self._written.add("trained")  # in whose memory models are mixed
        assert changed <= self._written, f"{what} changes the rows of {', '.join(sorted(changed - self._written))}"
        self._written |= outside
        self.seen[what] = self.seen.get(what, 0) + 1

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Inside, every verb and every hook is."""
        owners = {"bank": self.run.bank, "engine": self.run.module.engine}
        hook = protocol.call_round_hook

        def watched_hook(trainer: Any, name: str, *args: Any, **options: Any) -> None:
            with self.still(name) if name != "on_engine_progress" else contextlib.nullcontext():
                hook(trainer, name, *args, **options)

        with contextlib.ExitStack() as stack:
            stack.enter_context(patch.object(protocol, "call_round_hook", watched_hook))
            for owner, names in READING.items():
                for name in names:
                    stack.enter_context(patch.object(owners[owner], name, self._reading(owners[owner], name)))
            for owner, names in WRITING.items():
                for name in names:
                    stack.enter_context(patch.object(owners[owner], name, self._writing(owners[owner], name)))
            yield

    def _reading(self, owner: Any, name: str) -> Any:
        verb = getattr(owner, name)

        @functools.wraps(verb)
        def watched(*args: Any, **kwargs: Any) -> Any:
            with self.still(name, *args, *kwargs.values()):
                return verb(*args, **kwargs)

        return watched

    def _writing(self, owner: Any, name: str) -> Any:
        verb = getattr(owner, name)
        place = {"mix": 1, "combine": 2, "reduce": 2, "rehearse": 2}.get(name, 0)  # of the row set among the arguments

        @functools.wraps(verb)
        def noted(*args: Any, **kwargs: Any) -> Any:
            always = {"change_sent": "sent", "mix_again": "models"}.get(name)
            self._written.add(always or (kwargs["into"] if "into" in kwargs else args[place]))
            return verb(*args, **kwargs)

        return noted
