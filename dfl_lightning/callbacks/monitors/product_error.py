"""The error of averaging the factors of adapters instead of their products."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from dfl_lightning.bank.layout import Entry, Layout
from dfl_lightning.bank.references import References
from dfl_lightning.callbacks.base import Monitor, mixed_terms
from dfl_lightning.round.record import Round
from dfl_lightning.utils.errors import UserError

if TYPE_CHECKING:
    from dfl_lightning.round.federation import Federation


class ProductError(Monitor):
    """The distance of the average of products from the product of averages, for adapters of low rank.

        product_error = mean over receivers i of sqrt(sum over adapters of
                        ||sum_j w_ij B_j A_j - (sum_j w_ij B_j) (sum_j w_ij A_j)||^2),    Frobenius norms

    w are the weights with which a receiver mixes the models that it received with its own. `product_error_relative` is
    the mean of the same number divided by the length of the first sum. An adapter adds `alpha / rank * B A` to a layer;
    this factor is left out. Where one of the two is not exchanged, or is the same for all clients, nothing is averaged
    that is multiplied, and the error is 0. The products of all models that are mixed are computed, which takes as long
    as a few training steps.
    """

    logs = ("product_error", "product_error_relative")

    def start(self, federation: Federation) -> None:
        """Require a network with adapters."""
        names = {name for name, _ in federation.network.named_parameters()}
        if not any("lora_A" in name and name.replace("lora_A", "lora_B") in names for name in names):
            raise UserError(
                "monitor ProductError measures adapters, and the network has no parameters lora_A and lora_B; use "
                "models.LoRA, or drop the monitor"
            )

    def on_weigh(self, round: Round) -> None:
        """Log the error of the round's averages, computed in float64."""
        bank, where = round.bank, round.voters.any(round.weights != 0)
        receivers = torch.nonzero(where).squeeze(1)
        pairs = exchanged_pairs(bank.layout)
        if not len(receivers):
            return
        lengths, errors = torch.zeros(2, len(receivers), dtype=torch.float64)
        mine = torch.nonzero(bank.ranks.at_home(receivers)).squeeze(1)
        means: dict[int, list[list[Any]]] = {int(job): [[0.0, 0.0, 0.0] for _ in pairs] for job in mine}
        terms = round.received_terms(mixed_terms(round, round.weights, where), receivers) if pairs else []
        for weights, name in terms:
            local = weights.take(mine)
            nodes, places = local.rows.unique(return_inverse=True)
            models = References.rows(name, nodes)
            with bank.with_remote_rows(models):
                rows = bank.materialise(models).double().cpu()
            for job, place, share in zip(local.jobs.tolist(), places.tolist(), local.shares.tolist(), strict=True):
                for sums, (first, second) in zip(means[int(mine[job])], pairs, strict=True):
                    a, b = (rows[place, e.start : e.stop].view(e.shape) for e in (first, second))
                    for index, term in enumerate((a, b, b @ a)):
                        sums[index] = sums[index] + share * term
        for job, of_pairs in means.items():
            errors[job] = math.sqrt(sum(float((product - b @ a).square().sum()) for a, b, product in of_pairs))
            lengths[job] = math.sqrt(sum(float(product.square().sum()) for _, _, product in of_pairs))
        lengths, errors = bank.ranks.join(mine, [lengths, errors])
        round.log("product_error", float(errors.mean()))
        if bool((lengths > 0).all()):
            round.log("product_error_relative", float((errors / lengths).mean()))


def exchanged_pairs(layout: Layout) -> list[tuple[Entry, Entry]]:
    """Return the factors A [rank, inputs] and B [outputs, rank] of the adapters that exchange both.

    Args:
        layout: the columns of a row.
    """
    shared = {entry.name: entry for entry in layout.entries if layout.is_shared(entry)}
    names = {name: name.replace("lora_A", "lora_B") for name in shared if "lora_A" in name}
    return [(shared[a], shared[b]) for a, b in names.items() if b in shared]
