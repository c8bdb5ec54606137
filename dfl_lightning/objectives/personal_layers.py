"""Layers that stay with their client: trained before the others, or together with them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dfl_lightning.bank.layout import Layout
from dfl_lightning.engines.local_work import Duration, Phase
from dfl_lightning.objectives.plain import Plain
from dfl_lightning.round.objective import Objective
from dfl_lightning.utils.errors import UserError

if TYPE_CHECKING:
    from dfl_lightning.round.federation import Federation


class FedRep(Plain):
    """Training of the head, then of the body (FedRep, Collins et al. 2021, arXiv 2102.07078, algorithm 1).

        h = h - eta grad_h f(b, h) for `head_epochs`,    then  b = b - eta grad_b f(b, h) for `model.local_epochs`

    The head h are the parameters that `model.shared` does not name, and the body b those that it names. Only the body
    is exchanged. Each part is trained with a fresh optimizer while the other one is frozen; running statistics of norms
    do not change while the body is frozen. It is `Plain` with the paper's number of head epochs, and it refuses a
    network without a head.

    Args:
        head_epochs: epochs on the personal parameters, the head; the paper has 10 for one epoch on the body.
    """

    method_name = "FedRep"
    recorded_as = Plain.recorded_as

    def __init__(self, head_epochs: int = 10) -> None:
        if head_epochs < 0:
            raise UserError(f"objective.head_epochs={head_epochs}; it must be 0 or more")
        super().__init__(personal_epochs=head_epochs)
        self.head_epochs = head_epochs

    def start(self, federation: Federation) -> None:
        """Require personal parameters, the head."""
        _refuse_without_personal_part(federation, self)


class FedPer(Plain):
    """Training of all layers together; some are not exchanged (FedPer, Arivazhagan et al. 2019, arXiv 1912.00818).

        (b, h) = (b, h) - eta grad f(b, h)

    The body b is exchanged. The personal part h, which `model.shared` does not name, is trained by the same optimizer
    and never sent: the head in FedPer, the body in LG-FedAvg (arXiv 2001.01523), the norms in FedBN (arXiv 2102.07623).
    """

    method_name = "FedPer"
    recorded_as = Plain.recorded_as

    def __init__(self) -> None:
        super().__init__()

    def phases(self, layout: Layout, duration: Duration, round: int) -> tuple[Phase, ...]:
        """Return one phase on all columns."""
        return Objective.phases(self, layout, duration, round)

    def start(self, federation: Federation) -> None:
        """Require personal parameters."""
        _refuse_without_personal_part(federation, self)


def _refuse_without_personal_part(federation: Federation, objective: Objective) -> None:
    layout = federation.layout
    if not layout.has_personal_parameters:
        names = [entry.name for entry in layout.entries if not entry.is_buffer]
        raise UserError(
            f"objective {type(objective).__name__} trains a part that is not exchanged, and all parameters are: name "
            f"those that are exchanged in model.shared (the parameters are {', '.join(names)}; the last layer is "
            f"'{names[-1].rpartition('.')[0]}')"
        )
