"""Plain empirical risk minimisation, of personal parameters first if there are any."""

from __future__ import annotations

from dfl_lightning.bank.layout import Layout
from dfl_lightning.engines.local_work import Duration, JobContext, Phase
from dfl_lightning.round.objective import Objective
from dfl_lightning.utils.errors import UserError


class Plain(Objective):
    """Descent on the client's own mean loss.

        w = w - eta grad f(w)

    The run's optimizer takes the steps. If there are personal parameters (`model.shared` does not name all), these are
    trained first with the shared ones frozen, then the shared ones with the new personal ones frozen (AFIND+,
    arXiv 2407.04460, algorithm 1: K_beta, then K_w steps).

    Args:
        personal_epochs: epochs on the personal parameters; default: as many as on the shared ones.
    """

    stackable = True
    recordable = True
    recorded_as: str | None = "plain descent"
    supports_clock = True

    def __init__(self, personal_epochs: int | None = None) -> None:
        if personal_epochs is not None and personal_epochs < 0:
            raise UserError(f"objective.personal_epochs={personal_epochs}; it must be 0 or more")
        self.personal_epochs = personal_epochs

    def phases(self, layout: Layout, duration: Duration, round: int) -> tuple[Phase, ...]:
        """Return one phase on all columns, or one on personal and one on shared columns."""
        if not layout.has_personal_parameters:
            return (Phase(self, duration, layout.all),)
        first = duration if self.personal_epochs is None else Duration(self.personal_epochs)
        return (Phase(self, first, layout.personal), Phase(self, duration, layout.shared))

    def step(self, ctx: JobContext) -> None:
        """Update the model on one batch."""
        model = ctx.model()
        model.update(model.grad(ctx.next_batch()))
