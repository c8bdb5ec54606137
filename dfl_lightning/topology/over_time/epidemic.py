"""Graphs of Epidemic Learning (de Vos et al., NeurIPS 2023, arXiv 2310.01972), drawn anew in each round."""

from __future__ import annotations

import numpy as np
import torch

from dfl_lightning.links import AllPairs, Links


def epidemic_links(clients: int, s: int, seed: int) -> Links:
    """Draw a graph of EL-Local, in which each client sends to s others.

    Each set of s others is equally likely. A client may receive from any number of others.

    Args:
        clients: number of clients m.
        s: number of receivers of each client, at most m - 1.
        seed: seed of the draw, 63 bits.

    Examples:
        >>> links = epidemic_links(6, 2, seed=0)
        >>> links.num_receivers.tolist()
        [2, 2, 2, 2, 2, 2]
    """
    drawn = AllPairs.of_nodes(clients).draw(s, seed)
    return Links.of(drawn.senders, drawn.receivers, clients)


def regular_links(clients: int, s: int, seed: int) -> Links:
    """Draw a graph of EL-Oracle, an undirected graph in which each client is linked to s others.

    Ends of links are paired at random. Pairs that do not make a new link are separated and paired again; if no pair can
    make one, the draw starts again (Steger and Wormald 1999). If s is small in comparison with m, all such graphs are
    almost equally likely. If s is above half of m - 1, the complement of such a graph is drawn.

    Args:
        clients: number of clients m.
        s: the degree, at most m - 1; m times s must be even.
        seed: seed of the draw, 63 bits.

    Raises:
        ValueError: there is no such graph.

    Examples:
        >>> regular_links(6, 3, seed=0).count.tolist()
        [3, 3, 3, 3, 3, 3]
    """
    if s >= clients or clients * s % 2:
        raise ValueError(f"no graph of {clients} nodes has the degree {s}")
    if 2 * s > clients - 1:
        return Links.complete(clients).difference(regular_links(clients, clients - 1 - s, seed))
    random = np.random.default_rng(seed)
    codes = None
    while codes is None:
        codes = _try_pairing(clients, s, random)
    low, high = torch.from_numpy(codes // clients), torch.from_numpy(codes % clients)
    return Links.of(torch.cat([low, high]), torch.cat([high, low]), clients)


def _try_pairing(clients: int, s: int, random: np.random.Generator) -> np.ndarray | None:
    """Draw the links of a regular graph, as ascending codes low * m + high; None if the last ends cannot be paired."""
    codes = np.empty(0, dtype=np.int64)
    ends = np.repeat(np.arange(clients), s)
    while len(ends):
        low, high = np.sort(random.permutation(ends).reshape(-1, 2), axis=1).T
        paired = low * clients + high
        first = np.zeros(len(paired), dtype=bool)
        first[np.unique(paired, return_index=True)[1]] = True
        new = first & (low != high) & ~_among(paired, codes)
        if not new.any() and not _can_pair(np.unique(ends), clients, codes):
            return None
        codes = np.sort(np.concatenate([codes, paired[new]]))
        ends = np.concatenate([low[~new], high[~new]])
    return codes


def _can_pair(nodes: np.ndarray, clients: int, codes: np.ndarray) -> bool:
    """Return True if two of some nodes, ascending, are not linked yet."""
    low, high = np.triu_indices(len(nodes), 1)
    return not _among(nodes[low] * clients + nodes[high], codes).all()


def _among(numbers: np.ndarray, ascending: np.ndarray) -> np.ndarray:
    """Mark the numbers that are among some ascending ones, bool."""
    if not len(ascending):
        return np.zeros(len(numbers), dtype=bool)
    return ascending[np.searchsorted(ascending, numbers).clip(max=len(ascending) - 1)] == numbers
