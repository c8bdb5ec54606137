"""FedeRiCo's prediction: the weighted mean of the probabilities of several clients' models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from dfl_lightning.callbacks.base import Prediction, Selection
from dfl_lightning.links import Links
from dfl_lightning.utils.errors import UserError

if TYPE_CHECKING:
    from dfl_lightning.round.federation import Federation


class Mixture(Prediction):
    """The weighted mean of the probabilities of several models (FedeRiCo, Sui et al. 2022, arXiv 2210.06597).

        p_i(y|x) = sum_j w_ij softmax(scores of phi_j at x)(y)

    The sum is over the client's own model and those that its selection finds most useful, with the selection's weights
    (`FedeRiCo`: softmax(-L_i) over these models). The models are those after the round. Like all reported evaluations
    this is not charged; outside of a simulation a client would fetch the collaborators' models once more. If models are
    fine-tuned before an evaluation, only the client's own model is.
    """

    supports_servers = False

    def start(self, federation: Federation) -> None:
        """Require a selection that implements `collaborators`."""
        selection = federation.require(Selection)
        if type(selection).collaborators is Selection.collaborators:
            raise UserError(
                f"prediction Mixture averages by how useful a selection finds models, and {type(selection).__name__} "
                "does not say; use --selection FedeRiCo"
            )

    def members(self, federation: Federation) -> tuple[Links, Tensor] | None:
        """Return the selection's collaborators after the last round, and their weights."""
        return federation.require(Selection).collaborators(federation, max(0, federation.bank.boundary.round - 1))
