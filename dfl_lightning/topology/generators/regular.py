"""The random regular graph of networkx with the same links, drawn with arrays in a tenth of the time."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch

from dfl_lightning.links import AllPairs, Links


class TooManyDraws(Exception):
    """The limit of random draws was reached before the graph was complete."""


def may_be_regular(degree: Any, nodes: int) -> bool:
    """Return True if there is a regular graph of this degree and size.

    Args:
        degree: a value of any type; only integers can be degrees.
        nodes: number of nodes n.
    """
    return type(degree) is int and 0 <= degree < nodes and degree * nodes % 2 == 0


def regular_links(degree: int, nodes: int, seed: int, most: int) -> Links:
    """Draw the graph of `regular_codes` and return its links in both directions.

    Args:
        degree: d, from 0 to nodes - 1, where d times nodes is even.
        nodes: number of nodes n.
        seed: seed of Python's `random.Random`.
        most: largest number of 32-bit random numbers that may be drawn.

    Raises:
        TooManyDraws: the limit was reached before the graph was complete.
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
        nodes: number of nodes n.
        seed: seed of Python's `random.Random`.
        most: largest number of 32-bit random numbers that may be drawn.

    Returns:
        The links (a, b) with a < b, as a * n + b, ascending, int64 [n d / 2].

    Raises:
        TooManyDraws: the limit was reached before the graph was complete, as happens with nearly complete graphs.

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
    """Try once to pair all stubs (the ends of links) at random; return the links' codes, or None if it fails."""
    stubs = np.tile(np.arange(nodes), degree)
    codes = np.empty(0, dtype=np.int64)
    while len(stubs):
        words.shuffle(stubs)
        ends = np.sort(stubs.reshape(-1, 2), axis=1)
        paired = ends[:, 0] * nodes + ends[:, 1]
        first = np.zeros(len(paired), dtype=bool)
        first[np.unique(paired, return_index=True)[1]] = True  # of equal pairs, the first one counts
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
    """Mark the codes that are among some ascending ones, bool."""
    if not len(ascending):
        return np.zeros(len(codes), dtype=bool)
    indices = np.searchsorted(ascending, codes).clip(max=len(ascending) - 1)
    return ascending[indices] == codes


def _suitable(codes: np.ndarray, left: dict[int, int], nodes: int) -> bool:
    """Return True if networkx finds two remaining nodes that are not linked, in the order in which it compares them."""
    senders, receivers = np.divmod(codes, nodes)
    remaining = np.zeros(nodes, dtype=bool)
    remaining[[*left]] = True
    linked = set(codes[remaining[senders] & remaining[receivers]].tolist())
    for outer in left:
        a = outer
        for b in left:
            if a == b:
                break
            low, high = min(a, b), max(a, b)
            if low * nodes + high not in linked:
                return True
            a = low  # networkx continues with the smaller node
    return False


class _Words:
    """The 32-bit words of `random.Random(seed)`, and a shuffle of arrays by them.

    Args:
        seed: seed of the generator.
        most: largest number of words that may be used.
    """

    def __init__(self, seed: int, most: int) -> None:
        self._random, self._left = random.Random(seed), most
        self._words = np.empty(0, dtype=np.uint32)

    def shuffle(self, items: np.ndarray) -> None:
        """Shuffle an array [L] in place, with the same result as `random.shuffle`, which begins with the last item."""
        stop = len(items)
        while stop > 1:
            start = max(stop // 2, stop - 2**20)
            _swap(items, start, self._below(start, stop))
            stop = start

    def _below(self, start: int, stop: int) -> np.ndarray:
        """Draw the numbers that `randrange(i + 1)` returns for i = stop - 1, ..., start, in this order."""
        numbers, bound = np.empty(stop - start, dtype=np.int64), stop
        while bound > start:
            bits = bound.bit_length()
            last = max(start, (1 << (bits - 1)) - 1)  # all bounds above it have the same number of bits
            wanted = min(bound - last, max(1, bound // 64))
            words = self._next(wanted) >> np.uint32(32 - bits)
            accepted = words < bound
            while wanted > 1:  # the bound of a word is lower by 1 for each word that is accepted before it
                again = words < bound - (np.cumsum(accepted) - accepted)
                if np.array_equal(again, accepted):
                    break
                accepted = again
            good = words[accepted]
            numbers[stop - bound : stop - bound + len(good)] = good
            bound -= len(good)
        return numbers

    def _next(self, count: int) -> np.ndarray:
        """Return the next words, int64."""
        self._left -= count
        if self._left < 0:
            raise TooManyDraws
        if count > len(self._words):
            more = max(count, 2**14)
            drawn = self._random.getrandbits(32 * more).to_bytes(4 * more, "little")
            self._words = np.concatenate([self._words, np.frombuffer(drawn, dtype="<u4")])
        taken, self._words = self._words[:count], self._words[count:]
        return taken.astype(np.int64)


def _swap(items: np.ndarray, start: int, others: np.ndarray) -> None:
    """Swap the items at start + len(others) - 1, ..., start with those at the indices `others`, one after the other.

    A block of swaps is done at once if no index occurs twice in it; the size of blocks makes this likely. Otherwise the
    swaps are done one by one.
    """
    stop = start + len(others)
    done = 0
    while done < len(others):
        high = stop - done
        step = min(max(1, int(high**0.5) // 4), len(others) - done)
        low, partners = high - step, others[done : done + step]
        indices = np.arange(high - 1, low - 1, -1)
        if int(partners.max()) < low and len(np.unique(partners)) == step:
            items[indices], items[partners] = items[partners], items[indices]
        else:
            for index, partner in zip(indices.tolist(), partners.tolist(), strict=True):
                items[index], items[partner] = items[partner], items[index]
        done += step
