"""Dis-PFL's local rule: training under a mask, and the search for the next one."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from dfl_lightning.bank.layout import Columns, Entry, Layout
from dfl_lightning.engines.local_work import Duration, JobContext, LocalRule, Phase
from dfl_lightning.functional import erk_densities, pruned_share, searched_mask
from dfl_lightning.round.objective import Objective
from dfl_lightning.utils.errors import UserError

if TYPE_CHECKING:
    from dfl_lightning.round.federation import Federation
    from dfl_lightning.round.record import Round


class DisPFL(Objective):
    """Sparse local training under a mask that changes (Dis-PFL, Dai et al. 2022, arXiv 2206.00187, algorithm 2).

        w = w - eta m * grad f(w)
        pruned share in round t of T = prune / 2 (1 + cos(pi t / T))

    m is the client's mask of zeros and ones. Weights with two dimensions or more are masked; biases, norms and buffers
    are dense. The densities of the layers follow the Erdős-Rényi kernel. After the training, the pruned share of each
    layer's kept weights, the smallest ones, leaves the mask, and as many weights enter it: those with the largest dense
    gradient on another batch. Weights that enter the mask begin with the average of the neighbours' models. The rule is
    for the aggregation `MaskedAverage`. The logged training loss is that of the training alone.

    Args:
        density: share of the masked weights that is kept, above 0 and at most 1.
        prune: share of a layer's kept weights that is pruned and regrown in round 0 (alpha), 0 to 1.
        common_masks: whether all clients begin with the same mask; otherwise each draws its own.
    """

    method_name = "Dis-PFL"
    stackable = True
    supports_servers = False
    row_sets = {"mask": "zeros", "next_mask": "zeros"}
    against_clock = "masks change by rounds that are the same for all clients"

    def __init__(self, density: float = 0.5, prune: float = 0.5, common_masks: bool = False) -> None:
        if not 0 < density <= 1:
            raise UserError(f"objective.density={density}; it is a share above 0 and at most 1")
        if not 0 <= prune <= 1:
            raise UserError(f"objective.prune={prune}; it is a share between 0 and 1")
        self.density, self.prune, self.common_masks = density, prune, common_masks
        self.kept = []  # number of ones in the mask of each parameter; all entries of a dense one
        self._entries: list[Entry] = []
        self.rounds = 1  # rounds of the run

    def start(self, federation: Federation) -> None:
        """Require weights to mask, a known number of rounds, and optimizers without a kept state."""
        layout = federation.layout
        if federation.local.memory is not None:
            raise UserError(
                "objective DisPFL: a momentum from before the masks changed would move weights that are masked now; "
                "set model.keep_optimizer to false"
            )
        if federation.num_rounds is None:
            raise UserError("objective DisPFL prunes by a schedule that ends with the run; set trainer.max_rounds")
        self.rounds = max(1, federation.num_rounds)
        if not any(masked(entry) for entry in layout.entries):
            raise UserError(
                "objective DisPFL masks weights of two dimensions or more, and "
                f"{type(federation.network).__name__} has none; use --objective Plain"
            )
        self._entries = [entry for entry in layout.entries if not entry.is_buffer]
        densities = iter(erk_densities([entry.shape for entry in self._entries if masked(entry)], self.density))
        self.kept = [
            max(1, round(next(densities) * math.prod(entry.shape))) if masked(entry) else math.prod(entry.shape)
            for entry in self._entries
        ]

    def phases(self, layout: Layout, duration: Duration, round: int) -> tuple[Phase, ...]:
        """Return the training, and one batch for the search of the next mask, which changes no running statistics."""
        parameters = Columns((entry.start, entry.stop) for entry in layout.entries if not entry.is_buffer)
        return (Phase(self, duration, layout.all), Phase(_Search(self, round), Duration(0, steps=1), parameters))

    def on_start(self, round: Round) -> None:
        """Draw the first masks; entries of dense parameters and buffers are always kept."""
        bank, seed_of = round.bank, (lambda client: 0) if self.common_masks else int
        for name in ("mask", "next_mask"):
            rows = bank.next_of(name)
            rows.fill_(1.0)
            for row, client in enumerate(bank.ranks.own.tolist()):
                if client >= round.num_clients:
                    continue
                for layer, (entry, kept) in enumerate(zip(self._entries, self.kept, strict=True)):
                    if masked(entry):
                        drawn = torch.randperm(
                            math.prod(entry.shape), generator=round.generator("dispfl mask", seed_of(client), layer)
                        )
                        rows[row, entry.start + drawn[kept:].to(rows.device)] = 0.0

    def step(self, ctx: JobContext) -> None:
        """Update the entries that the mask keeps on one batch."""
        model, mask = ctx.model(), ctx.rows("mask")
        model.assign([p * m for p, m in zip(model.params, mask, strict=True)])  # the first model is dense
        model.update([g * m for g, m in zip(model.grad(ctx.next_batch()), mask, strict=True)])

    def after_mixing(self, round: Round) -> None:
        """Make the new masks those of the next round."""
        clients = round.clients_only
        round.combine(lambda new: new, ["next_mask"], into="mask", where=clients, columns=round.bank.layout.all)


class _Search(LocalRule):
    """The search of the next mask, from the trained weights and one dense gradient."""

    stackable = True
    reports_loss = False
    row_sets = DisPFL.row_sets

    def __init__(self, objective: DisPFL, index: int) -> None:
        self._objective, self._index = objective, index

    def phases(self, layout: Layout, duration: Duration, round: int) -> tuple[Phase, ...]:
        """Return the phases of `DisPFL`, with this search as the second one."""
        return self._objective.phases(layout, duration, round)

    def step(self, ctx: JobContext) -> None:
        """Prune and regrow the mask of each layer, and write the row set `next_mask`."""
        objective, model, mask = self._objective, ctx.model(), ctx.rows("mask")
        share = pruned_share(self._index, objective.rounds, objective.prune)
        searched = []
        tensors = zip(objective._entries, objective.kept, mask, model.params, model.grad(ctx.next_batch()), strict=True)
        for entry, kept, old, weights, grads in tensors:
            if masked(entry):
                pruned = min(kept, math.ceil(share * kept - 1e-9))
                a, b, c = (t.reshape(-1, math.prod(entry.shape)) for t in (old, weights, grads))
                searched.append(searched_mask(a, b, c, kept, pruned).view(old.shape))
            else:
                searched.append(old)
        ctx.model("next_mask").assign(searched)


def masked(entry: Entry) -> bool:
    """Return True if a parameter has a mask: a trainable weight of two dimensions or more."""
    return entry.trainable and len(entry.shape) > 1
