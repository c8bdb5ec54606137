"""The boundary between two rounds, and the buffers of the round in progress."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import Tensor

from dfl_lightning.bank.references import References


class Boundary(NamedTuple):
    """The state between two rounds. It is replaced by a single assignment and never written into.

    It holds everything that a resumed run needs. Whenever a run is saved, even inside a signal handler, the checkpoint
    describes a boundary, never a half-finished round.

    Args:
        round: number of completed rounds.
        rows: the persistent row sets by name, [own, width] each: the rows of this process.
        callbacks: copies of the state of every callback.
        metrics: the last round's row of `metrics.csv`.
        evaluation: the last evaluation's arrays per client; empty if the last round had none.
        closed: True if the last round has also been evaluated (where due) and all its hooks have run.
        numbers: the clients' numbers by name, float64 [m], those of all clients in every process.
    """

    round: int
    rows: dict[str, Tensor]
    callbacks: dict[str, Any]
    metrics: dict[str, float]
    evaluation: dict[str, Tensor]
    closed: bool = True
    numbers: dict[str, Tensor] = {}  # never written into


class Wave(NamedTuple):
    """The rows and numbers with which a later wave of a round begins; like a boundary, it is never written into.

    Args:
        rows: the persistent row sets by name, [own, width] each.
        numbers: the clients' numbers by name, float64 [m].
    """

    rows: dict[str, Tensor]
    numbers: dict[str, Tensor]


@dataclass
class RoundBuffers:
    """Buffers of the round in progress, discarded if the round is abandoned."""

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
