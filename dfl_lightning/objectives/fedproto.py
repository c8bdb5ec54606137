"""FedProto's local rule: features near the mean features of their class, which clients exchange instead of models."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from dfl_lightning.bank.layout import Columns, Entry, Layout
from dfl_lightning.engines.local_work import Duration, JobContext, LocalRule, Phase, times
from dfl_lightning.functional import class_sums, has_prototype
from dfl_lightning.round.objective import Objective
from dfl_lightning.utils.errors import UserError

if TYPE_CHECKING:
    from dfl_lightning.round.federation import Federation
    from dfl_lightning.round.record import Round


class FedProto(Objective):
    """Local training with features near the classes' prototypes (FedProto, Tan et al., arXiv 2105.00243, eq. 7).

        w = w - eta grad of the mean over the batch's samples (x, y) of  loss(x, y) + lam ||phi(x) - P_y||^2 / d

    phi(x) are the d inputs of the network's last linear layer, and P_y is the last prototype of class y. Samples of
    classes without a prototype do not have the second term.

    After the training the client passes once more through its training data and adds up the features of each class by
    the trained model (eq. 3), as in training, with dropout masks and augmentation; running statistics do not change.
    The aggregation `PrototypeAverage` computes the next prototypes from these sums, at neighbours or at a server.
    Models are not exchanged, and clients keep theirs also with a server. The row set `prototypes` has the prototypes in
    the columns of the last layer's weight, [C, d], and zeros for classes without one. The logged training loss includes
    the distance.

    Args:
        lam: weight of the squared distance, 0 or more.
    """

    method_name = "FedProto"
    stackable = recordable = True
    keeps_models = True
    needs_classes = True
    row_sets = {"prototypes": "zeros"}
    numbers = {"_passed": 0.0}
    features = ("head",)
    against_clock = "prototypes are those of the same round"

    def __init__(self, lam: float = 1.0) -> None:
        if not (lam >= 0 and math.isfinite(lam)):
            raise UserError(f"objective.lam={lam}; the weight of FedProto's term must be 0 or more")
        self.lam = lam
        self._place = 0

    def start(self, federation: Federation) -> None:
        """Require a last linear layer with an output for each class, and an aggregation that mixes prototypes."""
        entry, classes = head_weight(federation.layout)[1], federation.data.num_classes
        layer = dict(federation.network.named_modules()).get(entry.name.rpartition(".")[0])
        if not isinstance(layer, nn.Linear) or layer.out_features != classes:
            raise UserError(
                "objective FedProto compares inputs of a last linear layer with an output for each of the "
                f"{classes} classes, and the last matrix of {type(federation.network).__name__}, '{entry.name}', "
                "belongs to none; "
                "use a network that ends with torch.nn.Linear, or another objective"
            )
        if not any(policy.averages_prototypes for policy in federation.policies):
            raise UserError(
                "objective FedProto exchanges prototypes, which only aggregation PrototypeAverage mixes; add "
                "--aggregation PrototypeAverage"
            )

    def on_start(self, round: Round) -> None:
        """Require that the last layer of the network is also the last linear layer of a forward pass."""
        name = head_weight(round.bank.layout)[1].name.rpartition(".")[0]
        head = round.federation.engine.config.features["head"]
        if head != name:
            raise UserError(
                f"objective FedProto keeps prototypes in the weight of the network's last layer, '{name}', and the "
                f"last linear layer of a forward pass is '{head}'; define it last in the network's __init__"
            )

    def phases(self, layout: Layout, duration: Duration, round: int) -> tuple[Phase, ...]:
        """Return the training, and an epoch that adds up the features."""
        place, entry = head_weight(layout)
        self._place = place
        return (
            Phase(self, duration, layout.all),
            Phase(_Sums(place, entry), Duration(1), Columns([(entry.start, entry.stop)])),
        )

    def prototype_columns(self, layout: Layout) -> Entry:
        """Return the columns of the prototypes in a row of the set `prototypes`, class by class."""
        return head_weight(layout)[1]

    def step(self, ctx: JobContext) -> None:
        """Update the model on one batch, by the gradient of loss and distance."""
        model, received = ctx.model(), ctx.rows("prototypes")[self._place]

        def loss(scores: Tensor, batch: Any, features: dict[str, Tensor], prototypes: Tensor) -> Tensor:
            near = prototypes[batch.labels]
            usable = has_prototype(near).unsqueeze(-1)
            return ctx.loss(scores, batch) + self.lam * ((features["head"] - near).square() * usable).mean()

        model.update(model.grad(ctx.next_batch(), loss, received))


class _Sums(LocalRule):
    """The second phase of `FedProto`: sums of features by class, written over the prototypes.

    Args:
        place: index of the last layer's weight among the parameters.
        entry: columns of this weight.
    """

    stackable = recordable = True
    recorded_as = "sums of features"
    reports_loss = False
    row_sets, numbers, features = FedProto.row_sets, FedProto.numbers, FedProto.features

    def __init__(self, place: int, entry: Entry) -> None:
        self._place, self._entry = place, entry

    def phases(self, layout: Layout, duration: Duration, round: int) -> tuple[Phase, ...]:
        """Return the one epoch of this phase."""
        return (Phase(self, Duration(1), Columns([(self._entry.start, self._entry.stop)])),)

    def step(self, ctx: JobContext) -> None:
        """Add the features of a batch; those of the first batch replace the prototypes."""
        batch, kept, passed = ctx.next_batch(), ctx.model("prototypes"), ctx.number("_passed")
        values = list(kept.params)
        before = values[self._place]
        features = ctx.model().features(batch).to(before.dtype)
        sums = class_sums(features, batch.labels, batch.weights, self._entry.shape[0])
        values[self._place] = times(passed, [before])[0] + sums
        kept.assign(values)
        ctx.set_number("_passed", torch.ones_like(passed))

    def finish(self, ctx: JobContext) -> None:
        """Let the next round's first batch begin new sums."""
        ctx.set_number("_passed", torch.zeros_like(ctx.number("_passed")))


def head_weight(layout: Layout) -> tuple[int, Entry]:
    """Return the last matrix of a network: its index among the parameters, and its columns.

    Raises:
        UserError: the network does not have a matrix.
    """
    entries = [entry for entry in layout.entries if not entry.is_buffer]
    matrices = [(place, entry) for place, entry in enumerate(entries) if len(entry.shape) == 2]
    if not matrices:
        raise UserError("objective FedProto needs a network that ends with torch.nn.Linear, and it has no linear layer")
    return matrices[-1]
