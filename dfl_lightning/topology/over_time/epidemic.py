"""Graphs of Epidemic Learning (de Vos et al., NeurIPS 2023, arXiv 2310.01972), drawn anew in each round."""

from __future__ import annotations

import numpy as np
import torch

from dfl_lightning.links import AllPairs, Links


def epidemic_links(clients: int, s: int, seed: int) -> Links:
    """EL-Local: each client sends to s others, every set of s equally likely; a client may receive from any number.

    Args:
        clients: m.
        s: to how many each sends, at most m - 1.
        seed: of the draw, 63 bits.

    Examples:
        >>> links = epidemic_links(6, 2, seed=0)
        >>> links.num_receivers.tolist()
        [2, 2, 2, 2, 2, 2]
    """
    drawn = AllPairs.of_nodes(clients).draw(s, seed)
    return Links.of(drawn.senders, drawn.receivers, clients)


def regular_links(clients: int, s: int, seed: int) -> Links:
    """EL-Oracle: a random undirected graph in which each client is linked to s others.

    Ends of links are paired at random; pairs that make no new link are paired again, and all of them where this comes
    to no end (Steger and Wormald 1999): all such graphs are equally likely where s is small beside m. For s above half
    of m - 1 it is the graph of the pairs that are not linked.

    Args:
        clients: m.
        s: the degree, at most m - 1; m times s must be even.
        seed: of the draw, 63 bits.

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
        codes = _paired(clients, s, random)
    low, high = torch.from_numpy(codes // clients), torch.from_numpy(codes % clients)
    return Links.of(torch.cat([low, high]), torch.cat([high, low]), clients)


def _paired(clients: int, s: int, random: np.random.Generator) -> np.ndarray | None:
    """Ascending codes low * m + high of the links of a regular graph; None where the last ends cannot be paired."""
    codes = np.empty(0, dtype=np.int64)
    ends = np.repeat(np.arange(clients), s)
    while len(ends):
        low, high = np.sort(random.permutation(ends).reshape(-1, 2), axis=1).T
        found = low * clients + high
        first = np.zeros(len(found), dtype=bool)
        first[np.unique(found, return_index=True)[1]] = True
        new = first & (low != high) & ~_among(found, codes)
        if not new.any() and not _fit(np.unique(ends), clients, codes):
            return None
        codes = np.sort(np.concatenate([codes, found[new]]))
        ends = np.concatenate([low[~new], high[~new]])
    return codes


def _fit(nodes: np.ndarray, clients: int, codes: np.ndarray) -> bool:
    """Whether two of some nodes, ascending, are not linked yet."""
    low, high = np.triu_indices(len(nodes), 1)
    return not _among(nodes[low] * clients + nodes[high], codes).all()


def _among(found: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """Which numbers are among ascending ones, bool."""
    if not len(codes):
        return np.zeros(len(found), dtype=bool)
    return codes[np.searchsorted(codes, found).clip(max=len(codes) - 1)] == found
