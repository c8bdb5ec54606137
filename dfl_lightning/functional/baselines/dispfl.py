"""Dis-PFL (Dai et al. 2022, arXiv 2206.00187): sparse personal models over a decentralized graph.

Its round (algorithms 1 and 2), and the code of each step:

1. draw masks of a given density, layer by layer                         (`erk_densities`; the objective, on_start)
2. local SGD on the entries that the mask keeps                          (the objective `DisPFL`, step)
3. prune the smallest weights of each layer, by a cosine schedule        (`pruned_share`, `searched_mask`)
4. regrow as many where the dense gradient is largest                    (`searched_mask`)
5. average each entry over the models whose masks keep it,
   and keep the entries of the client's own new mask                     (the aggregation `MaskedAverage`)
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["erk_densities", "pruned_share", "searched_mask"]


def erk_densities(shapes: Sequence[Sequence[int]], density: float) -> list[float]:
    """Compute densities of layers in proportion to the sum of their dimensions over the product (Erdős-Rényi kernel).

    All layers together have the given density. Layers whose density would exceed 1 are dense, and the others share the
    remaining entries (Evci et al. 2020, arXiv 1911.11134).

    Args:
        shapes: shape of each layer's weight, with two dimensions or more.
        density: share of all entries that is kept, above 0 and at most 1.

    Examples:
        >>> erk_densities([(10, 10), (2, 2)], 0.5)
        [0.48, 1.0]
        >>> [round(d, 3) for d in erk_densities([(40, 60), (60, 80)], 0.2)]
        [0.25, 0.175]
    """
    sizes = [math.prod(shape) for shape in shapes]
    raw = [sum(shape) / size for shape, size in zip(shapes, sizes, strict=True)]
    dense: set[int] = set()
    while len(dense) < len(sizes):
        left = density * sum(sizes) - sum(sizes[layer] for layer in dense)
        factor = left / sum(raw[layer] * sizes[layer] for layer in range(len(sizes)) if layer not in dense)
        above = {layer for layer in range(len(sizes)) if layer not in dense and factor * raw[layer] > 1}
        if not above:
            return [1.0 if layer in dense else max(0.0, factor * raw[layer]) for layer in range(len(sizes))]
        dense |= above
    return [1.0] * len(sizes)


def pruned_share(round: int, rounds: int, first: float = 0.5) -> float:
    """Compute the share of a layer's weights that is pruned and regrown: first / 2 (1 + cos(pi t / T)).

    Args:
        round: t, counted from 0.
        rounds: T, of the whole run.
        first: the share in round 0.

    Examples:
        >>> pruned_share(0, 100), pruned_share(50, 100), pruned_share(100, 100)
        (0.5, 0.25, 0.0)
    """
    return first / 2 * (1 + math.cos(math.pi * round / rounds))


def searched_mask(mask: Tensor, weights: Tensor, grads: Tensor, kept: int, pruned: int) -> Tensor:
    """Return the mask after pruning and regrowing, with as many ones as before; pruned entries may be regrown.

    Args:
        mask: zeros and ones, [k, size], with `kept` ones in each row.
        weights: the layer's weights, [k, size].
        grads: dense gradients of these weights, [k, size].
        kept: number of ones in a row.
        pruned: number of ones that are pruned, those with the smallest absolute weights; as many entries with the
            largest absolute gradients among all zeros are regrown. Ties go to the lowest index.

    Examples:
        >>> searched_mask(
        ...     torch.tensor([[1.0, 1, 1, 0, 0]]),
        ...     torch.tensor([[3.0, -1, 2, 0, 0]]),
        ...     torch.tensor([[0.0, 1, 0, -5, 2]]),
        ...     kept=3,
        ...     pruned=1,
        ... )
        tensor([[1., 0., 1., 1., 0.]])
    """
    stay = kept - pruned
    held = weights.abs().masked_fill(mask == 0, -1.0).argsort(stable=True, dim=1, descending=True)[:, :stay]
    searched = torch.zeros_like(mask).scatter_(1, held, 1.0)
    grown = grads.abs().masked_fill(searched != 0, -1.0).argsort(stable=True, dim=1, descending=True)[:, :pruned]
    return searched.scatter_(1, grown, 1.0)
