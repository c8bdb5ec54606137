"""What a client does with its own data in a round: phases, the models that a step may train, and a step's batches."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

from torch import Tensor

from dfl_lightning.bank.layout import Columns, Layout

TINY = 1e-30
"""A gradient shorter than that has no direction."""

LossOf = Callable[..., Tensor]
"""(scores [B, C], batch, features, *extras) -> the mean loss of ONE client's batch, whatever the engine.

`batch` has `inputs` [B, ...], `labels` [B] and what was attached to it; `features` has the inputs of the layers that
the objective names, [B, ...] each; extras are what was handed to `grad`, without the leading dimension of clients.
"""


class Batch(Protocol):
    """A batch of one client, or of k clients stacked along a leading dimension; then shorter ones are padded.

    Attributes:
        inputs: [B, ...] or [k, B, ...].
        labels: int64 [B] or [k, B].
        weights: of samples in their client's mean, [B] or [k, B]; 0 of those that only pad a shorter batch.
    """

    inputs: Tensor
    labels: Tensor

    @property
    def weights(self) -> Tensor:
        """See above."""

    def attach(self, **tensors: Tensor) -> Self:
        """Return the same batch with further numbers for each sample, [B, ...] or [k, B, ...], for a loss to find."""


class Attached:
    """What a batch was given beside inputs and labels, as attributes; `attached` has it by name."""

    def __getattr__(self, name: str) -> Tensor:
        found: dict[str, Tensor] = self.__dict__.get("attached", {})
        if name not in found:
            raise AttributeError(f"a batch has inputs, labels and what was attached to it; no '{name}'")
        return found[name]


class TrainableModel(Protocol):
    """A model of the job's client: the one that others receive, or the client's row of another row set.

    Every list has a tensor for each parameter, in the network's order: [*shape], or [k, *shape] for k clients.

    Attributes:
        params: its parameters; `update` and `assign` change them in place.
    """

    @property
    def params(self) -> list[Tensor]:
        """Its parameters now."""

    @property
    def start(self) -> list[Tensor]:
        """Its parameters at the start of the job."""

    def grad(
        self, batch: Any, loss: LossOf | None = None, *extras: Tensor, at: Sequence[Tensor] | None = None
    ) -> list[Tensor]:
        """Return gradients of the batch's mean loss; zeros for a parameter on which it does not depend.

        Args:
            batch: from `next_batch`.
            loss: default the run's own; see `LossOf`.
            extras: further tensors of the client for `loss`, [...], or [k, ...] for k clients.
            at: parameters to take the gradient at; default its own.

        Raises:
            ValueError: `loss` is not given and there are extras.
        """

    def hessian_product(self, batch: Any, vector: Sequence[Tensor], at: Sequence[Tensor] | None = None) -> list[Tensor]:
        """Return the Hessian of the batch's mean loss times a vector, by differentiating the gradient once more.

        Args:
            batch: from `next_batch`.
            vector: a tensor for each parameter; what it has outside of the phase's columns counts as 0.
            at: parameters to take the Hessian at; default its own.

        Raises:
            UserError: in the stacked engine, whose layers have a first derivative only; rules that use it say
                `stackable = False`.
        """

    def features(self, batch: Any, layer: str = "head", at: Sequence[Tensor] | None = None) -> Tensor:
        """Return the input of a layer that `features` names, without a gradient: [B, ...] or [k, B, ...].

        Buffers are updated as in any training pass.

        Args:
            batch: from `next_batch`.
            layer: its name; `head`: the last linear layer of a forward pass.
            at: parameters to compute it with; default: the model's own.
        """

    def climbed(self, grads: Sequence[Tensor], length: float) -> list[Tensor]:
        """Return the parameters after a step along the client's own gradient; the model itself is not changed.

        Args:
            grads: of `grad`, one tensor for each parameter.
            length: Euclidean length of the step, over all parameters.
        """

    def update(self, grads: Sequence[Tensor]) -> None:
        """Take one step of its own optimizer (gradients are clipped for each client) on the phase's columns.

        A parameter on which the loss does not depend is left alone, as by torch's optimizers, and does not decay
        either: where `grads` has the zeros that `grad` returned for it, unchanged.
        """

    def assign(self, values: Sequence[Tensor]) -> None:
        """Put parameters in the place of its own, in the phase's columns, without an optimizer."""


class JobContext(Protocol):
    """The job an objective works on: one client, or many stacked along a leading dimension."""

    def model(self, name: str = "models") -> TrainableModel:
        """Return the client's model in a row set that the objective declares; what becomes of it is the set's new row.

        Raises:
            ValueError: the row set is not declared.
        """

    def rows(self, name: str) -> list[Tensor]:
        """Return the client's row of a row set, one tensor for each parameter; read only.

        Raises:
            ValueError: the row set is not declared.
        """

    @property
    def lr(self) -> float | Tensor:
        """The learning rate of the round: that of the optimizer's first group, as a number or a scalar tensor."""

    def number(self, name: str) -> Tensor:
        """Return the client's number of that name, a scalar, or [k] for k clients, in the run's precision; read only.

        Raises:
            ValueError: the objective does not declare it in `numbers`.
        """

    def set_number(self, name: str, value: Tensor) -> None:
        """Replace the client's number, which the next step, and the next round, read.

        Args:
            name: declared in `numbers`.
            value: a scalar, or [k] for k clients.

        Raises:
            ValueError: the objective does not declare it in `numbers`.
        """

    def inner(self, a: Sequence[Tensor], b: Sequence[Tensor]) -> Tensor:
        """Return the inner product over all parameters of each client: a scalar, or [k] for k clients.

        Args:
            a: a tensor for each parameter.
            b: likewise.
        """

    def next_batch(self) -> Any:
        """Return the next batch, to be handed to `grad`; one more epoch is drawn where all batches are taken."""

    def loss(self, scores: Tensor, batch: Any) -> Tensor:
        """Return the run's own loss of one client's batch, for use in a `LossOf`: a scalar, the mean over samples.

        Args:
            scores: logits [B, C].
            batch: with the labels.
        """


def times(number: Tensor | float, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Multiply each client's tensors by its number, in both engines.

    Args:
        number: a scalar, or [k] for k clients.
        tensors: [*shape], or [k, *shape], each.

    Examples:
        >>> import torch
        >>> times(torch.tensor([2.0, 3.0]), [torch.ones(2, 2)])
        [tensor([[2., 2.],
                [3., 3.]])]
    """
    if not isinstance(number, Tensor):
        return [number * t for t in tensors]
    return [number.view((*number.shape, *[1] * (t.dim() - number.dim()))) * t for t in tensors]


@dataclass(frozen=True)
class Duration:
    """How long a phase lasts.

    Args:
        epochs: passes over the client's training data.
        steps: batches, the same for every client however many samples it has; None: as many as the epochs have.
    """

    epochs: int
    steps: int | None = None

    def batches(self, per_epoch: int) -> int:
        """Count the batches of a client whose epoch has so many."""
        return self.epochs * per_epoch if self.steps is None else self.steps if per_epoch else 0

    def epochs_drawn(self, per_epoch: int) -> int:
        """Count the epochs whose batches these are, the last of them perhaps not whole."""
        return self.epochs if self.steps is None else -(-self.batches(per_epoch) // max(1, per_epoch))

    def samples(self, size: int, batch_size: int) -> int:
        """Count the samples that a client trains on, repeated ones included.

        Args:
            size: samples of the client.
            batch_size: B.

        Examples:
            >>> Duration(2).samples(10, 4), Duration(2, steps=4).samples(10, 4)
            (20, 14)
        """
        per_epoch = -(-size // batch_size)
        whole, rest = divmod(self.batches(per_epoch), max(1, per_epoch))
        return whole * size + min(rest * batch_size, size)

    @property
    def is_empty(self) -> bool:
        """Nothing is done."""
        return not (self.epochs if self.steps is None else self.steps)

    def __str__(self) -> str:
        number, word = (self.epochs, "epoch") if self.steps is None else (self.steps, "step")
        return f"{number} {word}{'s' * (number != 1)}"


@dataclass(frozen=True)
class Phase:
    """Some batches on some columns, with a fresh optimizer, unless its state is kept (`model.keep_optimizer`).

    Args:
        objective: whose `step` is called until the phase's batches are taken.
        duration: how many batches.
        columns: what is trained; the rest is frozen.
    """

    objective: LocalRule
    duration: Duration
    columns: Columns


class LocalRule(ABC):
    """What engines know of an objective.

    Attributes:
        stackable: that `step` works on tensors [k, *shape] of k clients as it does on one client's. True only if every
            operation treats the leading dimension as a batch: means over clients, for example, would mix them.
        recordable: that every call of `step` does the same operations on equally many batches, whatever the numbers and
            with no state of its own in Python, so that a GPU may record one and replay it.
        row_sets: row sets that steps read and train, besides `models`, and what they begin as: `models` (the first
            models) or `zeros`.
        optimized: row sets whose models steps update by an optimizer (`update`), which `model.keep_optimizer` keeps.
        recorded_as: steps of rules of the same name may be recorded once for all, whatever the objects; None: only
            those of the run's own object. Subclasses do not inherit it.
        numbers: a number for each client, by name, and what it begins as; steps read and set it by `ctx.number` and
            `ctx.set_number`, and it lasts over rounds. Run folders have those whose names do not begin with `_`.
        features: layers whose inputs its losses want, by name; `head` is the last linear layer of a forward pass.
        needs_classes: whether it looks at classes, so that other tasks (`model.task`) are refused.
        reports_loss: whether the losses of a phase of this rule are the round's training loss, which that of the last
            such phase is.
    """

    stackable: bool = False
    recordable: bool = False
    row_sets: Mapping[str, str] = {}  # read only
    optimized: tuple[str, ...] = ("models",)
    numbers: Mapping[str, float] = {}  # read only
    recorded_as: str | None = None
    features: tuple[str, ...] = ()
    needs_classes: bool = False
    reports_loss: bool = True

    @abstractmethod
    def phases(self, layout: Layout, duration: Duration, round: int) -> tuple[Phase, ...]:
        """The phases of a round's local work.

        Args:
            layout: the network's columns, shared and personal.
            duration: `model.local_epochs`, or `model.local_steps`.
            round: the round, 0-based.
        """

    @abstractmethod
    def step(self, ctx: JobContext) -> None:
        """One or more batches: take them, compute gradients, update."""

    def finish(self, ctx: JobContext) -> None:
        """After the last batch of a job, once, by the rule of its last phase: assign models, set numbers.

        Models may be assigned to, in the columns of that phase, but not updated, and there are no more batches. A
        client without training data gets here, too; a run without local epochs does not.
        """
        return

    def declares_number(self, name: str) -> str:
        """Why steps may not use a number, in one sentence; empty where they may."""
        if name in self.numbers:
            return ""
        return (
            f"objective {type(self).__name__} uses the number '{name}', which it does not declare; "
            f"give it numbers = {{'{name}': 0.0}}, what it begins as"
        )

    def declares(self, name: str) -> str:
        """Why steps may not use a row set, in one sentence; empty where they may."""
        if name == "models" or name in self.row_sets:
            return ""
        return (
            f"objective {type(self).__name__} uses the row set '{name}', which it does not declare; "
            f"give it row_sets = {{'{name}': 'models'}} or 'zeros', what it begins as"
        )
