"""What an objective is: phases, and a step in terms of the job at hand."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor

from dfl_lightning.bank.layout import Columns, Layout

if TYPE_CHECKING:
    from dfl_lightning.round.federation import Federation
    from dfl_lightning.round.record import Round


class JobContext(Protocol):
    """The job an objective works on: one client, or many stacked along a leading dimension.

    Attributes:
        params: the job's parameters, in the network's order; `update` changes them in place.
    """

    params: list[Tensor]

    @property
    def start(self) -> list[Tensor]:
        """The parameters' values at the start of the job."""

    def rows(self, name: str) -> list[Tensor]:
        """The client's row of a row set, one tensor for each parameter."""

    def next_batch(self) -> Any:
        """The next batch, to be handed to `grad`; one more epoch is drawn where all batches are taken."""

    def grad(self, params: Sequence[Tensor], batch: Any) -> list[Tensor]:
        """Gradients of the batch's mean loss at `params`."""

    def update(self, params: Sequence[Tensor], grads: Sequence[Tensor]) -> None:
        """One step of the optimizer (clipped for each client) on the phase's columns."""


@dataclass(frozen=True)
class Phase:
    """Some epochs on some columns, with a fresh optimizer.

    Args:
        objective: whose `step` is called for each batch.
        epochs: passes over the client's training data.
        columns: what is trained; the rest is frozen.
    """

    objective: Objective
    epochs: int
    columns: Columns


class Objective(ABC):
    """A local training rule, chosen like a policy.

    Attributes:
        stackable: that `step` works on tensors [k, *shape] of k clients as it does on one client's. True only if every
            operation treats the leading dimension as a batch: means over clients, for example, would mix them.
        recordable: that every call of `step` does the same operations on equally many batches, whatever the numbers and
            with no state of its own in Python, so that a GPU may record one and replay it.
        row_sets: row sets that `ctx.rows` reads, besides `models`, and what they begin as: `models` (the first models)
            or `zeros`.
        reports: the row set that clients are evaluated and exported by, where it is not `models`.
        supports_servers: whether it works where servers receive and mix.
    """

    stackable: bool = False
    recordable: bool = False
    row_sets: Mapping[str, str] = {}  # read only
    reports: str | None = None
    supports_servers: bool = True

    @abstractmethod
    def phases(self, layout: Layout, epochs: int) -> tuple[Phase, ...]:
        """The phases of one round's local work.

        Args:
            layout: the network's columns, shared and personal.
            epochs: `model.local_epochs`.
        """

    def start(self, federation: Federation) -> None:  # noqa: B027
        """Refuse what cannot work, before training, with a `UserError`."""

    def before_mixing(self, round: Round) -> None:  # noqa: B027
        """With `round.weights` known and the models not yet mixed: write the objective's own row sets."""

    @abstractmethod
    def step(self, ctx: JobContext) -> None:
        """One batch: take it, compute gradients, update."""
