"""networkx's random regular graph, link for link, drawn with arrays, in a tenth of the time."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch

from dfl_lightning.links import AllPairs, Links


class TooManyDraws(Exception):
    """The graph has come to no end."""


def may_be_regular(degree: Any, nodes: int) -> bool:
    """Whether there is such a graph.

    Args:
        degree: anything.
        nodes: n.
    """
    return type(degree) is int and 0 <= degree < nodes and degree * nodes % 2 == 0


def regular_links(degree: int, nodes: int, seed: int, most: int) -> Links:
    """The links of `regular_codes`, in both directions.

    Args:
        degree: see there, as the others.
        nodes: n.
        seed: of the draw.
        most: how many numbers may be drawn.
    """
    if degree == nodes - 1:
        return AllPairs.of_nodes(nodes)
    codes = regular_codes(degree, nodes, seed, most)
    low, high = np.divmod(codes, nodes)
    both = np.concatenate([codes, high * nodes + low])
    both.sort()
    return Links.coded(torch.from_numpy(both), nodes)


def regular_codes(degree: int, nodes: int, seed: int, most: int) -> np.ndarray:
    """Draw the graph of `networkx.random_regular_graph(degree, nodes, seed)` (Steger and Wormald 1999).

    Args:
        degree: d, from 0 to nodes - 1, where d times nodes is even.
        nodes: n.
        seed: of Python's `random.Random`.
        most: how many numbers may be drawn.

    Returns:
        The links (a, b) with a < b, as a * n + b, ascending, int64 [n d / 2].

    Raises:
        TooManyDraws: that many were not enough, as where the graph is nearly complete.

    Examples:
        >>> [divmod(int(code), 4) for code in regular_codes(2, 4, seed=0, most=1000)]
        [(0, 1), (0, 3), (1, 2), (2, 3)]
    """
    words = _Words(seed, most)
    while True:
        codes = _attempt(degree, nodes, words)
        if codes is not None:
            return codes


def _attempt(degree: int, nodes: int, words: _Words) -> np.ndarray | None:
    """One attempt to pair all stubs, None where it has failed."""
    stubs = np.tile(np.arange(nodes), degree)
    codes = np.empty(0, dtype=np.int64)
    while len(stubs):
        words.shuffle(stubs)
        ends = np.sort(stubs.reshape(-1, 2), axis=1)
        paired = ends[:, 0] * nodes + ends[:, 1]
        first = np.zeros(len(paired), dtype=bool)
        first[np.unique(paired, return_index=True)[1]] = True  # a pair counts once, where it is first
        new = first & (ends[:, 0] != ends[:, 1]) & ~_among(paired, codes)
        codes = np.sort(np.concatenate([codes, paired[new]]))
        left: dict[int, int] = {}
        for node in ends[~new].reshape(-1).tolist():
            left[node] = left.get(node, 0) + 1
        if left and not _suitable(codes, left, nodes):
            return None
        stubs = np.repeat(np.array([*left], dtype=np.int64), [*left.values()])
    return codes


def _among(codes: np.ndarray, ascending: np.ndarray) -> np.ndarray:
    if not len(ascending):
        return np.zeros(len(codes), dtype=bool)
    places = np.searchsorted(ascending, codes).clip(max=len(ascending) - 1)
    return ascending[places] == codes


def _suitable(codes: np.ndarray, left: dict[int, int], nodes: int) -> bool:
    """Whether networkx finds two of the nodes that are left and not linked; it looks at them in its own order."""
    senders, receivers = np.divmod(codes, nodes)
    of_them = np.zeros(nodes, dtype=bool)
    of_them[[*left]] = True
    linked = set(codes[of_them[senders] & of_them[receivers]].tolist())
    for outer in left:
        a = outer
        for b in left:
            if a == b:
                break
            low, high = min(a, b), max(a, b)
            if low * nodes + high not in linked:
                return True
            a = low  # networkx goes on with the smaller one
    return False


class _Words:
    """The 32-bit words of `random.Random(seed)`, and what its `shuffle` makes of them.

    Args:
        seed: of the generator.
        most: how many words may be used.
    """

    def __init__(self, seed: int, most: int) -> None:
        self._random, self._left = random.Random(seed), most
        self._words = np.empty(0, dtype=np.uint32)

    def shuffle(self, items: np.ndarray) -> None:
        """Shuffle as `random.shuffle` does, in place.

        Args:
            items: [L]; the last one changes places first.
        """
        stop = len(items)
        while stop > 1:
            start = max(stop // 2, stop - 2**20)
            _exchange(items, start, self._below(start, stop))
            stop = start

    def _below(self, start: int, stop: int) -> np.ndarray:
        """What `randrange(place + 1)` gives for the places stop - 1, ..., start, in this order."""
        found, bound = np.empty(stop - start, dtype=np.int64), stop
        while bound > start:
            bits = bound.bit_length()
            last = max(start, (1 << (bits - 1)) - 1)  # bounds above it have as many bits
            wanted = min(bound - last, max(1, bound // 64))
            words = self._take(wanted) >> np.uint32(32 - bits)
            accepted = words < bound
            while wanted > 1:  # a word's bound is lower by those accepted before it
                again = words < bound - (np.cumsum(accepted) - accepted)
                if np.array_equal(again, accepted):
                    break
                accepted = again
            good = words[accepted]
            found[stop - bound : stop - bound + len(good)] = good
            bound -= len(good)
        return found

    def _take(self, count: int) -> np.ndarray:
        """The next words, int64."""
        self._left -= count
        if self._left < 0:
            raise TooManyDraws
        if count > len(self._words):
            more = max(count, 2**14)
            drawn = self._random.getrandbits(32 * more).to_bytes(4 * more, "little")
            self._words = np.concatenate([self._words, np.frombuffer(drawn, dtype="<u4")])
        taken, self._words = self._words[:count], self._words[count:]
        return taken.astype(np.int64)


def _exchange(items: np.ndarray, start: int, others: np.ndarray) -> None:
    """Exchange the items at the places start + len(others) - 1, ..., start with those at `others`, one after the other.

    As many at a time as hardly ever touch one place twice; where they do, one by one.
    """
    stop = start + len(others)
    done = 0
    while done < len(others):
        high = stop - done
        step = min(max(1, int(high**0.5) // 4), len(others) - done)
        low, theirs = high - step, others[done : done + step]
        places = np.arange(high - 1, low - 1, -1)
        if int(theirs.max()) < low and len(np.unique(theirs)) == step:
            items[places], items[theirs] = items[theirs], items[places]
        else:
            for mine, other in zip(places.tolist(), theirs.tolist(), strict=True):
                items[mine], items[other] = items[other], items[mine]
        done += step
