"""pFedGraph's local rule: training that keeps the model's direction near that of the client's collaborators."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

import torch

from dfl_lightning.bank.layout import Layout
from dfl_lightning.bank.references import Weights
from dfl_lightning.engines.local_work import TINY, Duration, JobContext, Phase, times
from dfl_lightning.objectives.plain import Plain
from dfl_lightning.utils.errors import UserError

if TYPE_CHECKING:
    from dfl_lightning.round.federation import Federation
    from dfl_lightning.round.record import Round


class PFedGraph(Plain):
    """Descent on a loss with a term of direction, f(w) - lam <w, r> / ||w|| (pFedGraph, Ye et al., ICML 2023, eq. 3).

        w = w - eta (grad f(w) - lam (r - <w, r> w / ||w||^2) / ||w||)
        r = sum_j x_ij w_j / ||w_j||

    x_ij are the weights of client i's average in the last round, and w_j the models that it averaged: r is fixed in a
    round and not normalised. Before the first average there is no such term. Products and norms are over the shared
    parameters; the logged training loss does not include the term. The weights are those of any aggregation; the
    paper's are those of `SimilarityWeighted`.

    Args:
        lam: weight of the term, 0 or more.
        sign: `towards`: the model moves towards the collaborators, as the paper describes; `printed`: the term is added
            instead of subtracted, as its formula is printed.
        personal_epochs: as in `Plain`, which trains the personal parameters.
    """

    method_name = "pFedGraph"
    recordable = True
    row_sets = {"direction": "zeros"}
    supports_servers = False
    supports_clock = False
    against_clock = "clients move towards models that were averaged in the same round"

    def __init__(
        self, lam: float = 0.01, sign: Literal["towards", "printed"] = "towards", personal_epochs: int | None = None
    ) -> None:
        if not (lam >= 0 and math.isfinite(lam)):
            raise UserError(f"objective.lam={lam}; the weight of the term must be 0 or more")
        if sign not in ("towards", "printed"):
            raise UserError(f"objective.sign={sign}; it is towards or printed")
        super().__init__(personal_epochs)
        self.lam, self.sign = lam, sign
        self._shared: list[bool] = []

    def start(self, federation: Federation) -> None:
        """Read which parameters are shared."""
        layout = federation.layout
        self._shared = [layout.shared.holds(entry) for entry in layout.entries if not entry.is_buffer]

    def phases(self, layout: Layout, duration: Duration, round: int) -> tuple[Phase, ...]:
        """Return the phases of `Plain`, whose step trains the personal parameters."""
        *personal, shared = super().phases(layout, duration, round)
        plain = Plain(self.personal_epochs)
        return (*(Phase(plain, phase.duration, phase.columns) for phase in personal), shared)

    def step(self, ctx: JobContext) -> None:
        """Update the model on one batch, by its gradient minus that of the term of direction."""
        model, direction = ctx.model(), ctx.rows("direction")
        grads = model.grad(ctx.next_batch())
        counts = self._shared or [True] * len(grads)
        w = [p for p, counted in zip(model.params, counts, strict=True) if counted]
        r = [d for d, counted in zip(direction, counts, strict=True) if counted]
        square = ctx.inner(w, w).clamp(min=TINY)
        scale = (self.lam if self.sign == "towards" else -self.lam) / square.sqrt()
        # r - <w, r> w / ||w||^2 is ||w|| times the gradient of <w, r> / ||w||
        across = zip(r, times(ctx.inner(w, r) / square, w), strict=True)
        pull = iter(times(scale, [a - b for a, b in across]))
        model.update([g - next(pull) if counted else g for g, counted in zip(grads, counts, strict=True)])

    def before_mixing(self, round: Round) -> None:
        """Write the direction r of the next round, from the models that are averaged now."""
        n, layout = round.num_nodes, round.bank.layout
        counted = (round.weights != 0) & (round.voters.senders < n)
        receivers, senders = round.voters.receivers[counted], round.voters.senders[counted]
        where = torch.zeros(n, dtype=torch.bool)
        where[receivers] = True
        lengths = torch.ones(n, dtype=torch.float64)
        averaged = senders.unique()
        squares = round.bank.squared_lengths("sent", averaged, layout.shared_parameters)
        lengths[averaged] = squares.sqrt().clamp(min=TINY)
        jobs = (where.cumsum(0) - 1)[receivers]
        shares = round.weights[counted] / lengths[senders]
        weights = Weights(jobs, senders, shares, (int(where.sum()), n))
        round.mix([(weights, "trained")], into="direction", where=where, columns=layout.shared_parameters)
