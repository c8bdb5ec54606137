"""FedProto's local rule: features near the mean features of their class, which clients exchange in place of models."""

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
    """Descend the data's loss plus lam times the squared error of features to prototypes (arXiv 2105.00243, eq. 7).

    With phi(x) the d inputs of the network's last linear layer and P_y the prototype of class y that came last (Tan et
    al., AAAI 2022), the loss of a batch is

        mean over its samples (x, y) of  loss(x, y) + lam ||phi(x) - P_y||^2 / d

    without the second term for samples of classes that have no prototype yet.

    After the local training the client passes once more through its training data and adds up the features of each
    class by the trained model (eq. 3), as in training: with dropout masks and augmentation, but running statistics do
    not move. The aggregation `PrototypeAverage` makes the next prototypes of these sums, at neighbours or at a server;
    models are not exchanged, and clients keep theirs under a server too. The row set `prototypes` has the prototypes in
    the columns of the last layer's weight, [C, d], zeros where there is none. The logged training loss has the distance
    in it.

    Args:
        lam: weight of the squared error, 0 or more.
    """

    method_name = "FedProto"
    stackable = recordable = True
    keeps_models = True
    needs_classes = True
    row_sets = {"prototypes": "zeros"}
    numbers = {"_passed": 0.0}
    features = ("head",)

    def __init__(self, lam: float = 1.0) -> None:
        if not (lam >= 0 and math.isfinite(lam)):
            raise UserError(f"objective.lam={lam}; the weight of FedProto's term must be 0 or more")
        self.lam = lam
        self._place = 0

    def start(self, federation: Federation) -> None:
        """Require a last linear layer with an output for each class, and an aggregation that leaves models alone."""
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
        """Check that the layer is the last one of a forward pass, too."""
        name = head_weight(round.bank.layout)[1].name.rpartition(".")[0]
        found = round.federation.engine.config.features["head"]
        if found != name:
            raise UserError(
                f"objective FedProto keeps prototypes in the weight of the network's last layer, '{name}', and the "
                f"last linear layer of a forward pass is '{found}'; define it last in the network's __init__"
            )

    def phases(self, layout: Layout, duration: Duration, round: int) -> tuple[Phase, ...]:
        """Return the training, and an epoch in which features are added up."""
        place, entry = head_weight(layout)
        self._place = place
        return (
            Phase(self, duration, layout.all),
            Phase(_Sums(place, entry), Duration(1), Columns([(entry.start, entry.stop)])),
        )

    def prototype_columns(self, layout: Layout) -> Entry:
        """Return where a row of `prototypes` has them, class by class.

        Args:
            layout: of the network's rows.
        """
        return head_weight(layout)[1]

    def step(self, ctx: JobContext) -> None:
        """Take one batch, one gradient, one update."""
        model, received = ctx.model(), ctx.rows("prototypes")[self._place]

        def loss(scores: Tensor, batch: Any, features: dict[str, Tensor], prototypes: Tensor) -> Tensor:
            near = prototypes[batch.labels]
            known = has_prototype(near).unsqueeze(-1)
            return ctx.loss(scores, batch) + self.lam * ((features["head"] - near).square() * known).mean()

        model.update(model.grad(ctx.next_batch(), loss, received))


class _Sums(LocalRule):
    """The sums of features by class, which are written over the prototypes.

    Args:
        place: of the last layer's weight among the parameters.
        entry: its columns.
    """

    stackable = recordable = True
    recorded_as = "sums of features"
    reports_loss = False
    row_sets, numbers, features = FedProto.row_sets, FedProto.numbers, FedProto.features

    def __init__(self, place: int, entry: Entry) -> None:
        self._place, self._entry = place, entry

    def phases(self, layout: Layout, duration: Duration, round: int) -> tuple[Phase, ...]:
        """Return this one epoch."""
        return (Phase(self, Duration(1), Columns([(self._entry.start, self._entry.stop)])),)

    def step(self, ctx: JobContext) -> None:
        """Add a batch; the first one replaces what was there."""
        batch, kept, passed = ctx.next_batch(), ctx.model("prototypes"), ctx.number("_passed")
        values = list(kept.params)
        before = values[self._place]
        features = ctx.model().features(batch).to(before.dtype)
        found = class_sums(features, batch.labels, batch.weights, self._entry.shape[0])
        values[self._place] = times(passed, [before])[0] + found
        kept.assign(values)
        ctx.set_number("_passed", torch.ones_like(passed))

    def finish(self, ctx: JobContext) -> None:
        """Let the next round's first batch begin new sums."""
        ctx.set_number("_passed", torch.zeros_like(ctx.number("_passed")))


def head_weight(layout: Layout) -> tuple[int, Entry]:
    """Return the last matrix of a network: its place among the parameters, and its columns.

    Args:
        layout: of the network's rows.

    Raises:
        UserError: there is none.
    """
    entries = [entry for entry in layout.entries if not entry.is_buffer]
    matrices = [(place, entry) for place, entry in enumerate(entries) if len(entry.shape) == 2]
    if not matrices:
        raise UserError("objective FedProto needs a network that ends with torch.nn.Linear, and it has no linear layer")
    return matrices[-1]
