"""FedProto's prediction: the class whose prototype is nearest to a sample's features."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from torch import Tensor

from dfl_lightning.bank.layout import Layout
from dfl_lightning.callbacks.base import Prediction
from dfl_lightning.engines.scoring.prediction_rule import LabelledOutputs, Outputs
from dfl_lightning.functional import prototype_probabilities
from dfl_lightning.utils.errors import UserError

if TYPE_CHECKING:
    from dfl_lightning.round.federation import Federation


class NearestPrototype(Prediction):
    """The class whose prototype is nearest to the features of a sample (FedProto, arXiv 2105.00243, algorithm 1).

        y(x) = argmin_c ||phi(x) - P_c||

    phi(x) are the d inputs of the network's last linear layer, and P_c the prototypes that the client has after the
    round, or those of the server. Probabilities, which the loss and some metrics need, are
    softmax(-||phi(x) - P_c||^2 / d); that of a class without a prototype is 1e-30. The network's scores decide as long
    as there are no prototypes. The prediction needs the objective `FedProto`.
    """

    features = ("head",)

    def __init__(self) -> None:
        self._columns = (0, 0)  # first and end of the prototypes in a row

    def start(self, federation: Federation) -> None:
        """Require an objective with prototypes."""
        objective = federation.objective
        if not hasattr(objective, "prototype_columns") or "prototypes" not in objective.row_sets:
            raise UserError(
                "prediction NearestPrototype compares features with prototypes, and objective "
                f"{type(objective).__name__} has none; use --config fedproto, or --objective FedProto with "
                "--aggregation PrototypeAverage"
            )
        entry = objective.prototype_columns(federation.layout)
        self._columns = entry.start, entry.stop

    def rows(self, layout: Layout) -> Mapping[str, tuple[int, int]]:
        """Return the columns of the prototypes."""
        return {"prototypes": self._columns}

    def predict(self, query: Outputs, memory: Mapping[str, LabelledOutputs]) -> Tensor:
        """Compare features with prototypes; return the network's probabilities if there are no prototypes."""
        prototypes = query.rows["prototypes"].unflatten(-1, (query.scores.shape[-1], -1))
        features = query.features["head"].flatten(query.scores.dim() - 1)
        return prototype_probabilities(features, prototypes, query.scores.softmax(-1))
