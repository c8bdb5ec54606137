"""APFL: each client's model is a mixture of a local model and the exchanged one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch

from dfl_lightning.bank.references import Weights
from dfl_lightning.engines.local_work import JobContext, times
from dfl_lightning.round.objective import Objective
from dfl_lightning.utils.errors import UserError

if TYPE_CHECKING:
    from dfl_lightning.round.record import Round


class APFL(Objective):
    """The mixture of a local and an exchanged model (APFL, Deng et al. 2020, arXiv 2003.13461, algorithm 1).

        u = alpha v + (1 - alpha) w
        w = w - eta grad f(w),    v = v - eta alpha grad f(u)
        alpha = alpha - eta <v - w, grad f(u)>, clipped to [0, 1]          (eq. 11)

    w is exchanged, and v never leaves its client. All gradients of a step are taken at its start. eta is the learning
    rate of the round, for alpha that of the optimizer's first group. Each model has an optimizer of its own, of the
    same kind.

    Clients are evaluated with the mixture of v and the averaged w, the output of the algorithm. The logged training
    loss is that of w; the column `alpha` is the mean over clients, and `clients.npz` has alpha of each client.

    Args:
        alpha: weight of the local model, from 0 (the exchanged model alone) to 1 (training alone); its first value if
            it is adapted.
        adapt: when alpha changes: `round`: on the first batch of the round, where w is the exchanged model; `step`: on
            each batch, where w has also been fitted to the client, so that alpha may fall to 0 and stay there;
            `never`.
    """

    method_name = "APFL"
    stackable = recordable = True
    row_sets = {"local": "models", "mixture": "models"}
    optimized = ("models", "local")
    reports = "mixture"
    logs = ("alpha",)

    def __init__(self, alpha: float = 0.5, adapt: Literal["never", "step", "round"] = "round") -> None:
        if not 0 <= alpha <= 1:
            raise UserError(f"objective.alpha={alpha}; the weight of the local model must be between 0 and 1")
        if adapt not in ("never", "step", "round"):
            raise UserError(f"objective.adapt={adapt}; it is never, step or round")
        self.alpha, self.adapt = alpha, adapt
        self.numbers = {"alpha": alpha, **({"_may_move": 1.0} if adapt == "round" else {})}

    def step(self, ctx: JobContext) -> None:
        """Update both models, and alpha if it changes, on one batch."""
        batch, w, v, alpha = ctx.next_batch(), ctx.model(), ctx.model("local"), ctx.number("alpha")
        mixture = [own + rest for own, rest in zip(times(alpha, v.params), times(1 - alpha, w.params), strict=True)]
        of_mixture, of_w = v.grad(batch, at=mixture), w.grad(batch)
        if self.adapt != "never":
            slope = ctx.inner([own - rest for own, rest in zip(v.params, w.params, strict=True)], of_mixture)
            if self.adapt == "round":
                slope = ctx.number("_may_move") * slope
                ctx.set_number("_may_move", torch.zeros_like(alpha))
            ctx.set_number("alpha", (alpha - ctx.lr * slope).clamp(0, 1))
        w.update(of_w)
        v.update(times(alpha, of_mixture))

    def finish(self, ctx: JobContext) -> None:
        """Allow the next change of alpha, with `adapt: round`, on the first batch of the next round."""
        if self.adapt == "round":
            ctx.set_number("_may_move", torch.ones_like(ctx.number("alpha")))

    def after_mixing(self, round: Round) -> None:
        """Write the mixtures of local and averaged models to the row set `mixture`, and log the mean of alpha."""
        alpha, n = round.bank.number("alpha"), round.num_nodes
        clients, clients_only = torch.arange(round.num_clients), round.clients_only
        layout = round.bank.layout
        for columns, nodes in ((layout.shared, round.federation.server_of(clients)), (layout.personal, clients)):
            terms = [(Weights.of_rows(clients, n, alpha), "local"), (Weights.of_rows(nodes, n, 1 - alpha), "mixed")]
            round.mix(terms, into="mixture", where=clients_only, columns=columns)
        round.log("alpha", float(alpha.mean()))
