"""Ditto: a personal model of each client, kept near the exchanged one."""

from __future__ import annotations

import math

from dfl_lightning.engines.local_work import JobContext
from dfl_lightning.round.objective import Objective
from dfl_lightning.utils.errors import UserError


class Ditto(Objective):
    """A personal model v near the exchanged model w (Ditto, Li et al. 2021, arXiv 2012.04221, algorithm 1).

        w = w - eta grad f(w)
        v = v - eta (grad f(v) + lam (v - w0))

    w0 is the exchanged model at the start of the round: the server's, or without a server the client's own after
    mixing. Clients are evaluated with v, which is never sent. Both models have an optimizer of their own, of the same
    kind; clipping of v's gradient includes the proximal term. The logged training loss is that of w.

    Args:
        lam: weight of the term that keeps v near w0 (the paper's lambda), 0 or more; 0 is training alone.
    """

    method_name = "Ditto"
    stackable = recordable = True
    row_sets = {"personal": "models"}
    optimized = ("models", "personal")
    reports = "personal"
    supports_clock = True

    def __init__(self, lam: float = 0.75) -> None:
        if not (lam >= 0 and math.isfinite(lam)):
            raise UserError(f"objective.lam={lam}; the weight of Ditto's proximal term must be 0 or more")
        self.lam = lam

    def step(self, ctx: JobContext) -> None:
        """Update both models on one batch."""
        batch, exchanged, personal = ctx.next_batch(), ctx.model(), ctx.model("personal")
        exchanged.update(exchanged.grad(batch))
        pull = zip(personal.grad(batch), personal.params, exchanged.start, strict=True)
        personal.update([(p - s).mul_(self.lam).add_(g) for g, p, s in pull])  # in place: one new tensor, not three
