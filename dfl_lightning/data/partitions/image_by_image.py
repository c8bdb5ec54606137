"""Images drawn one at a time, by a random client and its class prior, as Dis-PFL's public code divides a data set."""

from __future__ import annotations

import itertools

import numpy as np

__all__ = ["draw_image_by_image"]

NO_MASS = 1e-12
"""A client whose prior has no more than this in classes that are left draws these evenly."""


def draw_image_by_image(prior: np.ndarray, available: np.ndarray, size: int, rng: np.random.Generator) -> np.ndarray:
    """Draw images of each class for each client, one image after the other.

    A step: a client that is not full, each equally likely, draws a class from its prior over the classes that are left.
    This is that process exactly, without its loop over images. Which client draws does not depend on classes: the order
    is that of independent Poisson processes, one a client. And until a class runs out the draws are independent: all
    are made at once, and when a class has run out, those that drew it later draw again from what is left.

    Args:
        prior: class distribution of each client, rows sum to 1, [m, C].
        available: images of each class, int64 [C], at least `size` times m in all.
        size: images of a client.
        rng: of the draws.

    Returns:
        int64 [m, C], rows sum to `size`, columns to at most `available`.
    """
    num_clients, num_classes = prior.shape
    arrivals = rng.exponential(size=(num_clients, size)).cumsum(1)
    clients = np.argsort(arrivals, axis=None, kind="stable") // max(size, 1)  # whose turn it is, step by step
    classes = np.full(len(clients), -1)
    left = available > 0
    drawing = np.ones(len(clients), dtype=bool)
    while drawing.any():
        classes[drawing] = _draw(prior, left, clients[drawing], rng)
        ends = np.full(num_classes, len(clients))  # of each class, the step at which it is asked for and has run out
        for c in np.flatnonzero(left):
            asked = np.flatnonzero(classes == c)
            if len(asked) > available[c]:
                ends[c] = asked[available[c]]
        out = int(ends.argmin())
        if ends[out] == len(clients):
            break
        left[out] = False
        drawing = (classes == out) & (np.arange(len(clients)) >= ends[out])
    counts = np.zeros(prior.shape, dtype=np.int64)
    np.add.at(counts, (clients, classes), 1)
    return counts


def _draw(prior: np.ndarray, left: np.ndarray, clients: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A class for each step, from the prior of the client whose turn it is over the classes that are left."""
    weights = prior * left
    mass = weights.sum(1, keepdims=True)
    weights = np.where(mass > NO_MASS, weights / np.maximum(mass, NO_MASS), left / left.sum())
    bounds = weights.cumsum(1)
    bounds /= bounds[:, -1:]
    drawn = np.empty(len(clients), dtype=np.int64)
    order = np.argsort(clients, kind="stable")
    edges = np.searchsorted(clients[order], np.arange(len(prior) + 1))
    uniform = rng.random(len(clients))
    for client, (start, end) in enumerate(itertools.pairwise(edges)):
        steps = order[start:end]
        drawn[steps] = np.searchsorted(bounds[client], uniform[steps], side="right")
    return drawn
