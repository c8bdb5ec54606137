"""The Base-(k+1) graph: exact averaging after finitely many rounds for any number of clients (Takezawa et al. 2023).

The paper is arXiv 2305.11420. Its algorithms work on rows of nodes here, [B, n]: B graphs side by side.

- algorithm 1, k-peer hyper-hypercube: n = n_1 ... n_L with factors of at most k + 1; in round l cliques of n_l nodes
  average (`_hypercube`);
- algorithm 2, simple Base-(k+1): n = sum of a_l (k+1)^p_l, its digits in base k + 1, divides the nodes into parts V_l
  of a_l pieces; each part averages by itself; then, for l = 1, 2, …, the nodes of all later parts mix with one node of
  each piece of V_l, and the pieces of V_l average by themselves (`_simple`);
- algorithm 3, Base-(k+1): n = p q with p a product of primes up to k + 1: p simple graphs of q nodes, and a
  hyper-hypercube across them, unless one simple graph takes fewer rounds (`base_rounds`).
"""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import numpy as np
import torch

from dfl_lightning.links import Links

Piece = tuple[np.ndarray, np.ndarray, float]
"""Nodes, the other ends of their links in an array of the same shape, and the weight of these links."""


class Cliques:
    """Groups of nodes in which all nodes are linked to each other with equal weights.

    Args:
        nodes: ids of the nodes, one group for each row, [..., size].
    """

    def __init__(self, nodes: np.ndarray) -> None:
        self.nodes = nodes

    def piece(self) -> Piece:
        """Return each link once, and the weight of the links."""
        size = self.nodes.shape[-1]
        low, high = np.triu_indices(size, 1)
        return self.nodes[..., low], self.nodes[..., high], 1 / size


class Matches:
    """Links between each of some nodes and one node of each piece of a part.

    Args:
        nodes: ids of the nodes, [B, r].
        pieces: ids of the other ends of their links, [B, a, r].
        weight: weight of a link.
    """

    def __init__(self, nodes: np.ndarray, pieces: np.ndarray, weight: float) -> None:
        self.nodes, self.pieces, self.weight = nodes, pieces, weight

    def piece(self) -> Piece:
        """Return each link once, and the weight of the links."""
        return np.broadcast_to(self.nodes[:, None], self.pieces.shape), self.pieces, self.weight


OneRound = list[Cliques | Matches]


def base_rounds(clients: int, k: int) -> list[OneRound]:
    """Build the graphs of the rounds after which all clients have the exact mean.

    For a single client it is one graph without links.

    Args:
        clients: number of clients m.
        k: the largest degree, from 1 to m - 1.

    Examples:
        >>> [len(base_rounds(m, 1)) for m in (2, 3, 4, 5, 8, 100)]
        [1, 3, 2, 5, 3, 11]
    """
    smooth = 1  # p of algorithm 3
    for prime in _primes(clients):
        if prime <= k + 1:
            smooth *= prime
    nodes = np.arange(clients).reshape(smooth, clients // smooth)
    nested = _simple(nodes, k) + _hypercube(nodes.T, k)
    simple = _simple(nodes.reshape(1, -1), k)
    return (simple if len(simple) < len(nested) else nested) or [[]]


def links_of(graph: OneRound, clients: int) -> tuple[Links, torch.Tensor]:
    """Return the links of a round in both directions, and their entries of the mixing matrix, float64 [E].

    The matrix is symmetric. The entries of a receiver and its entry on the diagonal, which is not returned, sum to 1.

    Args:
        graph: one of the graphs of `base_rounds`.
        clients: number of clients m.
    """
    ends, weights = [np.empty((2, 0), dtype=np.int64)], [np.empty(0)]
    for one, other, weight in (part.piece() for part in graph):
        ends.append(np.stack([one.ravel(), other.ravel()]))
        weights.append(np.full(one.size, weight))
    (one, other), weight_of = np.concatenate(ends, axis=1), np.concatenate(weights)
    codes = np.concatenate([one * clients + other, other * clients + one])
    order = codes.argsort(kind="stable")
    return Links.coded(torch.from_numpy(codes[order]), clients), torch.from_numpy(np.tile(weight_of, 2)[order])


def _hypercube(nodes: np.ndarray, k: int) -> list[OneRound]:
    """Build rounds of cliques after which each row of nodes has its mean.

    The length of a row must have no prime factor above k + 1.
    """
    (batch, n), stride, rounds = nodes.shape, 1, []
    for factor in _factors(n, k + 1):
        cube = nodes.reshape(batch, n // (factor * stride), factor, stride)
        rounds.append([Cliques(np.moveaxis(cube, 2, -1))])
        stride *= factor
    return rounds  # type: ignore[return-value]


def _simple(nodes: np.ndarray, k: int) -> list[OneRound]:
    """Build rounds after which each row of nodes, of any length, has its mean."""
    batch, n = nodes.shape
    if max(_primes(n), default=1) <= k + 1:
        return _hypercube(nodes, k)
    digits = _digits(n, k + 1)
    powers = [(k + 1) ** p for p in range(len(digits) - 1, -1, -1) if digits[p]]
    counts = [digit for digit in reversed(digits) if digit]  # a_l
    cuts = np.cumsum([0, *(a * power for a, power in zip(counts, powers, strict=True))])
    parts = [nodes[:, first:stop] for first, stop in pairwise(cuts)]
    whole = [_hypercube(part, k) for part in parts]
    alone = [
        _hypercube(part.reshape(batch * a, power), k) if power > 1 else _hypercube(part, k)
        for part, a, power in zip(parts, counts, powers, strict=True)
    ]
    first, last = len(whole[0]), len(parts) - 1
    rounds: list[OneRound] = []
    for number in range(first + 1 + len(alone[0])):
        step: OneRound = []
        for index, part in enumerate(parts):
            since = number - first - index  # rounds since this part has mixed with the later ones
            if number < first:
                step += _cyclic_round(whole[index], number)
            elif since > 0 or (since == 0 and index == last):
                step += _cyclic_round(alone[index], since - (index != last))
            elif since == 0:
                later, pieces = nodes[:, cuts[index + 1] :], part.reshape(batch, counts[index], -1)
                weight = len(part[0]) / (counts[index] * (n - cuts[index]))
                step.append(Matches(later, pieces[..., -later.shape[1] :], weight))
                step += _cliques_of_rest(pieces[..., : -later.shape[1]].reshape(batch, -1), k + 1)
        rounds.append(step)
    return rounds


def _cyclic_round(rounds: list[OneRound], number: int) -> OneRound:
    """Return the round with a number, where the rounds repeat in a cycle; without rounds, one without links."""
    return list(rounds[number % len(rounds)]) if rounds else []


def _cliques_of_rest(nodes: np.ndarray, size: int) -> OneRound:
    """Divide nodes without other links in a round, [B, r], into cliques of a size, and a smaller one of the rest."""
    batch, free = nodes.shape
    cut = free - free % size
    cliques: OneRound = [Cliques(nodes[:, :cut].reshape(batch, -1, size))] if cut else []
    return [*cliques, Cliques(nodes[:, None, cut:])] if free - cut > 1 else cliques


@cache
def _factors(n: int, most: int) -> tuple[int, ...]:
    """Find the smallest number of factors, each at most `most`, whose product is n; ascending."""
    if n == 1:
        return ()
    choices = [_factors(n // d, most) for d in range(2, min(n, most) + 1) if n % d == 0]
    rest = min(choices, key=len)
    product = n // int(np.prod(rest, initial=1, dtype=np.int64))
    return tuple(sorted((*rest, product)))


def _primes(n: int) -> list[int]:
    """Return the prime factors of n, with repetition."""
    factors, prime = [], 2
    while prime * prime <= n:
        while n % prime == 0:
            factors.append(prime)
            n //= prime
        prime += 1
    return [*factors, n] if n > 1 else factors


def _digits(n: int, base: int) -> list[int]:
    """Return the digits of n in a base, the lowest first."""
    digits = []
    while n:
        n, digit = divmod(n, base)
        digits.append(digit)
    return digits
