"""FedeRiCo's prediction: the mean of what several clients' models predict."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from dfl_lightning.callbacks.base import Prediction, Selection
from dfl_lightning.links import Links
from dfl_lightning.utils.errors import UserError

if TYPE_CHECKING:
    from dfl_lightning.round.federation import Federation


class Mixture(Prediction):
    """Probabilities as the weighted mean of those of several models (FedeRiCo, arXiv 2210.06597).

    Client i predicts p(y|x) = sum_j w_ij softmax(scores of phi_j at x)(y): over its own model and the collaborators
    whose models its selection finds most useful, with the selection's weights (`FedeRiCo`: softmax(-L_i) over these).
    They are the models after the round. As any reported evaluation this costs nothing; a client that predicts outside
    of a simulation has to fetch the collaborators' models once more. Where models are fine-tuned before an evaluation,
    the client's own one is, and the others are taken as they are.
    """

    supports_servers = False

    def start(self, federation: Federation) -> None:
        """Require a selection that knows which models are of use."""
        selection = federation.require(Selection)
        if type(selection).collaborators is Selection.collaborators:
            raise UserError(
                f"prediction Mixture averages by how useful a selection finds models, and {type(selection).__name__} "
                "does not say; use --selection FedeRiCo"
            )

    def members(self, federation: Federation) -> tuple[Links, Tensor] | None:
        """Return the selection's collaborators, and their weights."""
        return federation.require(Selection).collaborators(federation, max(0, federation.bank.boundary.round - 1))
