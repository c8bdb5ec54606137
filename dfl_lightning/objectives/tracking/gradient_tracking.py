"""Gradient tracking with local steps: local descent along an estimate of the mean gradient of all clients."""

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
    """Local steps along the own gradient plus a correction towards the mean gradient of all (K-GT, arXiv 2301.01313).

    With z_i = (model before - model after) / (steps * learning rate), client i's mean step of the round, its correction
    becomes c_i + sum_j W_ij (z_j - z_i) before the models are mixed by W. The corrections sum to 0, so that the z_i sum
    to the clients' mean gradients: each z_i tracks their mean, and with Metropolis weights, full batches and a constant
    learning rate that is small enough all models reach the optimum of the clients' mean loss, where D-SGD stays off it.
    Corrections start at 0, and of two different weights of a pair the smaller one counts.

    Neighbours send z_i in addition to their model: it is counted as a proxy of the size of the shared parameters. Where
    Outgoing policies change what is sent, z_i is made of that, also for i itself, so that corrections still sum to 0.

    Args:
        personal_epochs: as in `Plain`; personal parameters have no correction.
    """

    method_name = "gradient tracking"
    stackable = True
    supports_servers = False
    row_sets = {"correction": "zeros"}

    def start(self, federation: Federation) -> None:
        """Require plain SGD without clipping, which alone leaves the sum of gradients in the models."""
        require_change_per_step(federation, self)

    def step(self, ctx: JobContext) -> None:
        """Take one batch: its gradient plus the correction."""
        model = ctx.model()
        model.update([g + c for g, c in zip(model.grad(ctx.next_batch()), ctx.rows("correction"), strict=True)])

    def before_mixing(self, round: Round) -> None:
        """Exchange the mean steps between those that mix and trained."""
        took_part, n = round.participants, round.num_nodes
        if not took_part.any() or round.lr == 0:
            return
        receivers, rows = round.voters.receivers, round.voters.senders
        trained = took_part[receivers] & (rows < n) & took_part[rows.clamp(max=n - 1)]
        links = Links(receivers[trained], rows[trained], n)
        exchanged = exchange_weights(round.weights[trained], links)
        travelled = round.lr * local_steps(round.federation)
        jobs, who = took_part.cumsum(0) - 1, torch.nonzero(took_part).squeeze(1)
        shares = exchanged / travelled[links.senders]
        change = Weights(jobs[links.receivers], links.senders, shares, (len(who), n)).keep(shares != 0)
        columns = round.bank.layout.shared_parameters
        terms = [(Weights.of_rows(who, n), "correction"), (change, "models"), (-change, "sent")]
        round.mix(terms, into="correction", where=took_part, columns=columns)
        round.ledger.fetch_part("mean step", len(columns), links.keep(exchanged > 0))
