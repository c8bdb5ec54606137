"""Gradient tracking with local steps: local steps along an estimate of the mean gradient of all clients."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from dfl_lightning.bank.references import Weights
from dfl_lightning.engines.local_work import JobContext
from dfl_lightning.functional import exchange_weights
from dfl_lightning.links import Links
from dfl_lightning.objectives.plain import Plain
from dfl_lightning.objectives.tracking.plain_steps import local_steps, require_change_per_step

if TYPE_CHECKING:
    from dfl_lightning.round.federation import Federation
    from dfl_lightning.round.record import Round


class GradientTracking(Plain):
    """Local steps corrected towards the mean gradient of all clients (K-GT, arXiv 2301.01313).

        x_i = x_i - eta (grad f_i(x_i) + c_i)                                      (each of the K_i local steps)
        c_i = c_i + sum_j W_ij (z_j - z_i),    z_i = (x_i before - x_i after) / (K_i eta)

    z_i is client i's mean step of the round, and models are mixed by W after the second line. The corrections c_i start
    at 0 and sum to 0, so that the z_i sum to the clients' mean gradients, and each z_i tracks their mean. With
    Metropolis weights, full batches and a small enough constant learning rate all models reach the optimum of the
    clients' mean loss, which D-SGD does not. If the two weights of a pair differ, the smaller one is used.

    Neighbours send z_i in addition to their model: it is counted as a proxy of the size of the shared parameters. If
    Outgoing policies change the messages, z_i is computed from these, also for i itself, so that corrections still sum
    to 0.

    Args:
        personal_epochs: as in `Plain`; personal parameters have no correction.
    """

    method_name = "gradient tracking"
    stackable = True
    supports_servers = False
    supports_clock = False
    against_clock = "its correction takes what all clients send in the same round"
    row_sets = {"correction": "zeros"}

    def start(self, federation: Federation) -> None:
        """Require plain SGD without clipping, so that the sum of gradients follows from the change of the model."""
        require_change_per_step(federation, self)

    def step(self, ctx: JobContext) -> None:
        """Update the model on one batch, by its gradient plus the correction."""
        model = ctx.model()
        model.update([g + c for g, c in zip(model.grad(ctx.next_batch()), ctx.rows("correction"), strict=True)])

    def before_mixing(self, round: Round) -> None:
        """Exchange the mean steps between clients that trained and mix each other's models, and update corrections."""
        took_part, n = round.participants, round.num_nodes
        if not took_part.any() or round.lr == 0:
            return
        receivers, rows = round.voters.receivers, round.voters.senders
        trained = took_part[receivers] & (rows < n) & took_part[rows.clamp(max=n - 1)]
        links = Links(receivers[trained], rows[trained], n)
        exchanged = exchange_weights(round.weights[trained], links)
        travelled = round.lr * local_steps(round)
        jobs, clients = took_part.cumsum(0) - 1, torch.nonzero(took_part).squeeze(1)
        shares = exchanged / travelled[links.senders]
        change = Weights(jobs[links.receivers], links.senders, shares, (len(clients), n)).keep(shares != 0)
        columns = round.bank.layout.shared_parameters
        terms = [(Weights.of_rows(clients, n), "correction"), (change, "models"), (-change, "sent")]
        round.mix(terms, into="correction", where=took_part, columns=columns)
        round.ledger.fetch_part("mean step", len(columns), links.keep(exchanged > 0))
