"""FedProx: local training with a proximal term that keeps the model near its start."""

from __future__ import annotations

import math

from dfl_lightning.bank.layout import Layout
from dfl_lightning.engines.local_work import Duration, JobContext, Phase
from dfl_lightning.objectives.plain import Plain
from dfl_lightning.utils.errors import UserError


class FedProx(Plain):
    """Local training with a proximal term (FedProx, Li et al. 2020, arXiv 1812.06127, eq. 2).

        w = w - eta (grad f(w) + mu (w - w_start))

    f is the client's mean loss, and w_start the model that the round's local training starts from: the server's, or the
    client's own without a server. The term, the gradient of mu/2 ||w - w_start||^2, applies to shared parameters;
    personal ones are trained without it. The logged training loss does not include the term, and clipping of gradients
    does.

    Args:
        mu: weight of the proximal term, 0 or more; 0 is `Plain`.
        personal_epochs: epochs on the personal parameters; default: as many as on the shared ones.
    """

    method_name = "FedProx"

    def __init__(self, mu: float = 0.2, personal_epochs: int | None = None) -> None:
        if not (mu >= 0 and math.isfinite(mu)):
            raise UserError(f"objective.mu={mu}; the weight of the proximal term must be 0 or more")
        super().__init__(personal_epochs)
        self.mu = mu

    def phases(self, layout: Layout, duration: Duration, round: int) -> tuple[Phase, ...]:
        """Return the phases of `Plain`, whose step trains the personal parameters."""
        *personal, shared = super().phases(layout, duration, round)
        plain = Plain(self.personal_epochs)
        return (*(Phase(plain, phase.duration, phase.columns) for phase in personal), shared)

    def step(self, ctx: JobContext) -> None:
        """Update the model on one batch, by its gradient plus the proximal term."""
        model = ctx.model()
        pull = zip(model.grad(ctx.next_batch()), model.params, model.start, strict=True)
        model.update([g + self.mu * (p - s) for g, p, s in pull])
