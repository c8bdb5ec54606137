"""The boundary between two rounds, and the buffers of the round in progress."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import Tensor

from dfl_lightning.bank.references import References


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
class RoundBuffers:
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
