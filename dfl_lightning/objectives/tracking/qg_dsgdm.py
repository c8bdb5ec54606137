"""QG-DSGDm: momentum from the change of models by training and mixing together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from dfl_lightning.bank.references import Weights
from dfl_lightning.engines.local_work import JobContext
from dfl_lightning.objectives.plain import Plain
from dfl_lightning.objectives.tracking.plain_steps import decays_weights, local_steps, require_change_per_step
from dfl_lightning.utils.errors import UserError

if TYPE_CHECKING:
    from dfl_lightning.round.federation import Federation
    from dfl_lightning.round.record import Round


class QGDSGDm(Plain):
    """Quasi-global momentum, from the change of the mixed model (Lin et al. 2021, arXiv 2102.04761, algorithm 1).

        x = x - eta (momentum m_i + grad f(x))                          (each of the K_i local steps)
        x_i^{t+1} = sum_j W_ij x_j                                      (mixing)
        d_i = (x_i^t - x_i^{t+1}) / (eta K_i)
        m_i = mu m_i + (1 - mu) d_i

    The momentum buffer m_i is 0 at first. It follows the changes in the neighbourhood, whereas the momentum of an
    optimizer that is kept over rounds (`model.keep_optimizer`) follows the client's own gradients. It stays with its
    client: only models are sent. The paper has K_i = 1. A client that has dropped out, diverges or has no data keeps
    its buffer, and so do all clients in a round with eta = 0. Personal parameters are not mixed and have no momentum.

    Args:
        momentum: weight of the buffer in a step (the paper's beta), at least 0 and below 1.
        mu: weight of the former buffer in the new one, at least 0 and below 1; default as `momentum`.
        nesterov: a step is `grad f(x) + momentum (momentum m + grad f(x))` (QG-DSGDm-N).
        personal_epochs: as in `Plain`.
    """

    method_name = "QG-DSGDm"
    recordable = True
    supports_servers = False
    supports_clock = False
    against_clock = "its momentum is the change of a model in a whole round"
    row_sets = {"momentum": "zeros"}

    def __init__(
        self,
        momentum: float = 0.9,
        mu: float | None = None,
        nesterov: bool = False,
        personal_epochs: int | None = None,
    ) -> None:
        for name, value in (("momentum", momentum), ("mu", mu)):
            if value is not None and not 0 <= value < 1:
                raise UserError(f"objective.{name}={value}; it must be at least 0 and below 1")
        super().__init__(personal_epochs)
        self.momentum, self.mu, self.nesterov = momentum, mu, nesterov

    def start(self, federation: Federation) -> None:
        """Require plain SGD without clipping, so that the sum of the steps follows from the change of the model."""
        require_change_per_step(federation, self)
        if self.nesterov and decays_weights(federation.local):
            raise UserError(
                "objective QGDSGDm with nesterov scales the gradient, which the optimizer's weight decay would bypass; "
                "set model.optimizer.weight_decay to 0"
            )

    def step(self, ctx: JobContext) -> None:
        """Update the model on one batch, by its gradient plus the momentum."""
        model, beta = ctx.model(), self.momentum
        pairs = list(zip(model.grad(ctx.next_batch()), ctx.rows("momentum"), strict=True))
        if self.nesterov:
            model.update([(1 + beta) * g + beta**2 * m for g, m in pairs])
        else:
            model.update([torch.add(g, m, alpha=beta) for g, m in pairs])

    def after_mixing(self, round: Round) -> None:
        """Write the new momentum buffers, from the round's change of each client's model."""
        steps = local_steps(round)
        clients, n = torch.nonzero(round.participants & (steps > 0)).squeeze(1), round.num_nodes
        if not len(clients) or round.lr == 0:
            return
        mu = self.momentum if self.mu is None else self.mu
        change = Weights.of_rows(clients, n, (1 - mu) / (round.lr * steps[clients]))
        terms = [(Weights.of_rows(clients, n, mu), "momentum"), (change, "models"), (-change, "mixed")]
        round.mix(terms, into="momentum", where=clients, columns=round.bank.layout.shared_parameters)
