"""Interfaces of local work: phases of a round, the models that a step may train, and a step's batches."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

from torch import Tensor

from dfl_lightning.bank.layout import Columns, Layout

TINY = 1e-30
"""Norm below which a gradient counts as zero, so that it has no direction."""

LossOf = Callable[..., Tensor]
"""(scores [B, C], batch, features, *extras) -> the mean loss of ONE client's batch, in both engines.

`batch` has `inputs` [B, ...], `labels` [B] and attached tensors; `features` has the inputs of the layers that the
objective names, [B, ...] each; `extras` are the tensors passed to `grad`, without the leading dimension of clients.
"""


class Batch(Protocol):
    """A batch of one client, or of k clients stacked along a leading dimension; shorter batches are padded to B.

    Attributes:
        inputs: [B, ...] or [k, B, ...].
        labels: int64 [B] or [k, B].
        weights: weights of samples in their client's mean, [B] or [k, B]; 0 for padding.
    """

    inputs: Tensor
    labels: Tensor

    @property
    def weights(self) -> Tensor:
        """See above."""

    def attach(self, **tensors: Tensor) -> Self:
        """Return the batch with further tensors, [B, ...] or [k, B, ...], which a loss can read as attributes."""


class Attached:
    """Base class of batches that shows the tensors attached to a batch as attributes.

    Attributes:
        attached: the tensors by name.
    """

    def __getattr__(self, name: str) -> Tensor:
        attached: dict[str, Tensor] = self.__dict__.get("attached", {})
        if name not in attached:
            raise AttributeError(
                f"a batch has no attribute '{name}', only inputs, labels, weights and what `attach` added"
            )
        return attached[name]


class TrainableModel(Protocol):
    """A model of the job's client: the one that others receive, or the client's row of another row set.

    Every list has a tensor for each parameter, in the network's order: [*shape], or [k, *shape] for k clients.

    Attributes:
        params: the model's parameters; `update` and `assign` change them in place.
    """

    @property
    def params(self) -> list[Tensor]:
        """Present parameters."""

    @property
    def start(self) -> list[Tensor]:
        """Parameters at the start of the job."""

    def grad(
        self, batch: Any, loss: LossOf | None = None, *extras: Tensor, at: Sequence[Tensor] | None = None
    ) -> list[Tensor]:
        """Return gradients of the batch's mean loss; zeros for a parameter on which it does not depend.

        Args:
            batch: from `next_batch`.
            loss: see `LossOf`; default: the run's own loss.
            extras: further tensors of the client for `loss`, [...], or [k, ...] for k clients.
            at: parameters at which the gradient is taken; default: the model's own.

        Raises:
            ValueError: there are extras, but no `loss`.
        """

    def hessian_product(self, batch: Any, vector: Sequence[Tensor], at: Sequence[Tensor] | None = None) -> list[Tensor]:
        """Return the Hessian of the batch's mean loss times a vector, by differentiating the gradient once more.

        Args:
            batch: from `next_batch`.
            vector: a tensor for each parameter; entries outside of the phase's columns count as 0.
            at: parameters at which the Hessian is taken; default: the model's own.

        Raises:
            UserError: in the stacked engine, whose layers have first derivatives only; rules that use Hessians
                declare `stackable = False`.
        """

    def features(self, batch: Any, layer: str = "head", at: Sequence[Tensor] | None = None) -> Tensor:
        """Return the input of a layer for this batch, without a gradient: [B, ...] or [k, B, ...].

        Buffers are updated as in any training pass.

        Args:
            batch: from `next_batch`.
            layer: a name that the rule's `features` declares; `head`: the last linear layer of a forward pass.
            at: parameters of the forward pass; default: the model's own.
        """

    def climbed(self, grads: Sequence[Tensor], length: float) -> list[Tensor]:
        """Return the parameters after a step of given length up the gradient; the model itself is not changed.

        Args:
            grads: result of `grad`, one tensor for each parameter.
            length: Euclidean length of the step, over all parameters of a client.
        """

    def update(self, grads: Sequence[Tensor]) -> None:
        """Clip each client's gradients, and take one step of the model's optimizer on the phase's columns.

        A parameter for which `grad` returned zeros because the loss does not depend on it is not changed, not even by
        weight decay, as in torch's optimizers. This holds only if `grads` has these very zeros, unchanged.
        """

    def assign(self, values: Sequence[Tensor]) -> None:
        """Replace the parameters in the phase's columns by these values, without an optimizer."""


class JobContext(Protocol):
    """The job that an objective works on: one client, or several stacked along a leading dimension."""

    def model(self, name: str = "models") -> TrainableModel:
        """Return the client's model in a declared row set; its parameters at the end are the set's new row.

        Raises:
            ValueError: the row set is not declared.
        """

    def rows(self, name: str) -> list[Tensor]:
        """Return the client's row of a row set, one tensor for each parameter; it must not be changed.

        Raises:
            ValueError: the row set is not declared.
        """

    @property
    def lr(self) -> float | Tensor:
        """Learning rate of the round, of the optimizer's first group: a number or a scalar tensor."""

    def number(self, name: str) -> Tensor:
        """Return the client's number of that name, a scalar, or [k] for k clients, in the run's precision; read only.

        Raises:
            ValueError: the objective does not declare it in `numbers`.
        """

    def set_number(self, name: str, value: Tensor) -> None:
        """Replace the client's number for the following steps and rounds.

        Args:
            name: a name that the objective declares in `numbers`.
            value: a scalar, or [k] for k clients.

        Raises:
            ValueError: the objective does not declare it in `numbers`.
        """

    def inner(self, a: Sequence[Tensor], b: Sequence[Tensor]) -> Tensor:
        """Return the inner product of two lists of tensors over all parameters: a scalar, or [k] for k clients.

        Args:
            a: a tensor for each parameter, [*shape] or [k, *shape].
            b: a tensor for each parameter, [*shape] or [k, *shape].
        """

    def next_batch(self) -> Any:
        """Return the next batch, an argument of `grad`; draw one more epoch if all batches have been taken."""

    def loss(self, scores: Tensor, batch: Any) -> Tensor:
        """Return the run's own loss of one client's batch, for use in a `LossOf`: a scalar, the mean over samples.

        Args:
            scores: outputs of the network, for example logits [B, C].
            batch: the batch with the labels.
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
    """Length of a phase.

    Args:
        epochs: passes over the client's training data.
        steps: number of batches, the same for clients with few and with many samples; None: those of the epochs.
    """

    epochs: int
    steps: int | None = None

    def batches(self, per_epoch: int) -> int:
        """Count the phase's batches for a client with `per_epoch` batches in an epoch."""
        return self.epochs * per_epoch if self.steps is None else self.steps if per_epoch else 0

    def epochs_drawn(self, per_epoch: int) -> int:
        """Count the epochs that the phase begins; the last one may not be used up."""
        return self.epochs if self.steps is None else -(-self.batches(per_epoch) // max(1, per_epoch))

    def samples(self, size: int, batch_size: int) -> int:
        """Count the samples that a client trains on, repeated ones included.

        Args:
            size: number of the client's samples.
            batch_size: samples of a whole batch.

        Examples:
            >>> Duration(2).samples(10, 4), Duration(2, steps=4).samples(10, 4)
            (20, 14)
        """
        per_epoch = -(-size // batch_size)
        whole, rest = divmod(self.batches(per_epoch), max(1, per_epoch))
        return whole * size + min(rest * batch_size, size)

    @property
    def is_empty(self) -> bool:
        """True if the phase has no batches."""
        return not (self.epochs if self.steps is None else self.steps)

    def __str__(self) -> str:
        number, word = (self.epochs, "epoch") if self.steps is None else (self.steps, "step")
        return f"{number} {word}{'s' * (number != 1)}"


@dataclass(frozen=True)
class Phase:
    """A part of local training: some batches on some columns.

    Each phase has a fresh optimizer, unless optimizer states are kept (`model.keep_optimizer`).

    Args:
        objective: the rule; its `step` is called until the phase's batches are taken.
        duration: number of epochs or batches.
        columns: the columns that are trained; the rest is frozen.
    """

    objective: LocalRule
    duration: Duration
    columns: Columns


class LocalRule(ABC):
    """Base class of objectives, with all that engines know of them.

    Attributes:
        stackable: True if `step` works on tensors [k, *shape] of k clients as it does on one client's. Every
            operation must treat the leading dimension as a batch: means over clients, for example, would mix them.
        recordable: True if all calls of `step` do the same operations on the same number of batches, for all values of
            the numbers and without state in Python, so that a GPU may record one call and replay it.
        row_sets: row sets that steps read and train, in addition to `models`, with their first values: `models` (the
            first models) or `zeros`.
        optimized: row sets whose models steps update by an optimizer (`update`), which `model.keep_optimizer` keeps.
        recorded_as: name that rules share if one recorded step may serve all of them, also in different objects; None:
            a recorded step serves only the run's own object. Subclasses do not inherit it.
        numbers: names of numbers that each client has, with their first values; steps read and set them by
            `ctx.number` and `ctx.set_number`, and they are kept over rounds. Run folders contain those whose names do
            not begin with `_`.
        features: names of layers whose inputs the losses read; `head` is the last linear layer of a forward pass.
        needs_classes: True if the rule reads labels as classes, so that other tasks (`model.task`) are refused.
        reports_loss: True if the losses of this rule's phases may be the round's training loss, which is that of the
            last such phase.
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
        """Return the phases of a round's local work, in their order.

        Args:
            layout: the network's columns, shared and personal.
            duration: `model.local_epochs`, or `model.local_steps`.
            round: 0-based.
        """

    @abstractmethod
    def step(self, ctx: JobContext) -> None:
        """Take one or more batches, compute gradients, and update the models."""

    def finish(self, ctx: JobContext) -> None:
        """Finish a job after its last batch: assign models, set numbers.

        Only the rule of the last phase is called, once for a job. It may assign parameters in the columns of that
        phase; it can neither update models nor take batches. It is called for a client without training data, too,
        but not in a run without local epochs.
        """
        return

    def declares_number(self, name: str) -> str:
        """Say in one sentence why steps may not use a number; return an empty string if they may."""
        if name in self.numbers:
            return ""
        return (
            f"objective {type(self).__name__} uses the number '{name}', which it does not declare; "
            f"add the class attribute numbers = {{'{name}': 0.0}}, with the first value"
        )

    def declares(self, name: str) -> str:
        """Say in one sentence why steps may not use a row set; return an empty string if they may."""
        if name == "models" or name in self.row_sets:
            return ""
        return (
            f"objective {type(self).__name__} uses the row set '{name}', which it does not declare; "
            f"add the class attribute row_sets = {{'{name}': 'models'}}, or 'zeros', with the set's first values"
        )
