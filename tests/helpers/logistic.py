"""Logistic regression by numpy alone, for references of methods on a graph; rows are [15 + 3] = weight, bias."""

import functools

import networkx as nx
import numpy as np
import torch
from plain import model, neighbours
from tester.rounds import Run, toy_data

from tests.helpers.orders import drawn_order

SIZES, RATE, EPOCHS = [6, 3, 5, 2, 4, 6], 0.2, 2
GRAPH = nx.Graph([(0, 1), (1, 2), (0, 2), (2, 3), (3, 4), (4, 5)])
"""A triangle with a tail, so that clients differ in their neighbours; sizes, so that they differ in their steps."""


def start(*policies, engine="loop", topology=GRAPH, sizes=SIZES, val_fraction=0.0, trainer=None, **options):
    """A run of the six clients in float64, with models that differ from the start."""
    settings = {
        "network": torch.nn.Sequential(torch.nn.Linear(5, 3)),
        "local_epochs": EPOCHS,
        "batch_size": 2,
        "optimizer": functools.partial(torch.optim.SGD, lr=RATE),
        "init": "independent",
        **options,
    }
    trainer = {"precision": "64-true", "engine": engine, **(trainer or {})}
    return Run(
        policies, len(sizes), 1000, topology, toy_data(sizes=sizes, val_fraction=val_fraction), settings, trainer
    )


def batch(run, samples):
    """Inputs [B, 5] and labels [B] of some samples."""
    x, y = run.data.batch(samples, dtype=torch.float64)
    return x.numpy(), y.numpy()


def batches(run, owner, round, epochs=EPOCHS, size=2):
    """Return a client's batches of a round; only the order of the samples is the library's."""
    samples, found = run.data.train[owner], []
    for epoch in range(epochs):
        order = drawn_order(len(samples), 0, "local", round, owner, epoch)
        found += [batch(run, part) for part in samples[order].split(size)]
    return found


def gradient(row, x, y, decay=0.0):
    """Return the gradient of the mean cross-entropy of scores x W' + b, plus weight decay."""
    return model.grad(row, x, y, [5, 3]) + decay * row


def metropolis(up=None, graph=GRAPH):
    """Weights [n, n] of the clients that are active, all where none are named; the others keep their models."""
    links = nx.to_numpy_array(graph, nodelist=range(len(graph))) > 0
    return neighbours.metropolis(links, np.ones(len(graph), bool) if up is None else np.array(up, bool))
