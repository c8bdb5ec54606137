"""Draws of one image at a time by a random client from its class prior, as in Dis-PFL's public code."""

from __future__ import annotations

import itertools

import numpy as np

__all__ = ["draw_image_by_image"]

NO_MASS = 1e-12
"""Largest probability of all classes that are left at which a client draws from them evenly instead of by its prior."""


def draw_image_by_image(prior: np.ndarray, available: np.ndarray, size: int, rng: np.random.Generator) -> np.ndarray:
    """Draw images of each class for each client, one image after the other.

    In each step a client that is not full, each equally likely, draws a class from its prior over the classes that are
    left. This function computes exactly that process without a loop over images. The order of the clients does not
    depend on classes: it is that of independent Poisson processes, one for each client. Until a class runs out, the
    draws are independent, so that all are made together. When a class has run out, the later draws of this class are
    repeated over the classes that are left.

    Args:
        prior: class distribution of each client, rows sum to 1, [m, C].
        available: number of images of each class, int64 [C], in total at least `size` times m.
        size: number of images of a client.
        rng: generator of the draws.

    Returns:
        int64 [m, C], rows sum to `size`, columns to at most `available`.
    """
    num_clients, num_classes = prior.shape
    arrivals = rng.exponential(size=(num_clients, size)).cumsum(1)
    clients = np.argsort(arrivals, axis=None, kind="stable") // max(size, 1)  # the client that draws in each step
    classes = np.full(len(clients), -1)
    left = available > 0
    drawing = np.ones(len(clients), dtype=bool)
    while drawing.any():
        classes[drawing] = _draw(prior, left, clients[drawing], rng)
        ends = np.full(num_classes, len(clients))  # the first step that draws a class after it has run out
        for c in np.flatnonzero(left):
            steps = np.flatnonzero(classes == c)
            if len(steps) > available[c]:
                ends[c] = steps[available[c]]
        out = int(ends.argmin())
        if ends[out] == len(clients):
            break
        left[out] = False
        drawing = (classes == out) & (np.arange(len(clients)) >= ends[out])
    counts = np.zeros(prior.shape, dtype=np.int64)
    np.add.at(counts, (clients, classes), 1)
    return counts


def _draw(prior: np.ndarray, left: np.ndarray, clients: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draw a class for each step from the prior of the step's client over the classes that are left."""
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
