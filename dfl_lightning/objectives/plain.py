"""Plain empirical risk minimisation, personal parameters first where there are any."""

from __future__ import annotations

from dfl_lightning.bank.layout import Layout
from dfl_lightning.engines.local_work import Duration, JobContext, Phase
from dfl_lightning.round.objective import Objective
from dfl_lightning.utils.errors import UserError


class Plain(Objective):
    """Descend the client's own mean loss.

    With personal parameters (`model.shared` names less than everything), these are trained first with the shared ones
    frozen, then the shared ones with the new personal ones frozen (AFIND+ algorithm 1: K_beta, then K_w steps).

    Args:
        personal_epochs: epochs on the personal parameters; default as many as the shared ones get.
    """

    stackable = True
    recordable = True
    recorded_as = "plain descent"

    def __init__(self, personal_epochs: int | None = None) -> None:
        if personal_epochs is not None and personal_epochs < 0:
            raise UserError(f"objective.personal_epochs={personal_epochs}; it must be 0 or more")
        self.personal_epochs = personal_epochs

    def phases(self, layout: Layout, duration: Duration, round: int) -> tuple[Phase, ...]:
        """Return one phase on everything, or personal then shared."""
        if not layout.has_personal_parameters:
            return (Phase(self, duration, layout.all),)
        first = duration if self.personal_epochs is None else Duration(self.personal_epochs)
        return (Phase(self, first, layout.personal), Phase(self, duration, layout.shared))

    def step(self, ctx: JobContext) -> None:
        """Take one batch, one gradient, one update."""
        model = ctx.model()
        model.update(model.grad(ctx.next_batch()))
