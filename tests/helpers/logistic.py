"""Logistic regression by numpy alone, for references of methods on a graph; rows are [15 + 3] = weight, bias."""

import functools

import networkx as nx
import numpy as np
import torch
from tester.rounds import Run, toy_data

from dfl_lightning.utils.random_streams import stream

SIZES, RATE, EPOCHS = [6, 3, 5, 2, 4, 6], 0.2, 2
GRAPH = nx.Graph([(0, 1), (1, 2), (0, 2), (2, 3), (3, 4), (4, 5)])
"""A triangle with a tail, so that clients differ in their neighbours; sizes, so that they differ in their steps."""


def start(*policies, engine="loop", topology=GRAPH, sizes=SIZES, trainer=None, **model):
    """A run of the six clients in float64, with models that differ from the start."""
    settings = {
        "network": torch.nn.Sequential(torch.nn.Linear(5, 3)),
        "local_epochs": EPOCHS,
        "batch_size": 2,
        "optimizer": functools.partial(torch.optim.SGD, lr=RATE),
        "init": "independent",
        **model,
    }
    trainer = {"precision": "64-true", "engine": engine, **(trainer or {})}
    return Run(policies, len(sizes), 1000, topology, toy_data(sizes=sizes), settings, trainer)


def batch(run, samples):
    """Inputs [B, 5] and labels [B] of some samples."""
    x, y = run.module.data.batch(samples, dtype=torch.float64)
    return x.numpy(), y.numpy()


def batches(run, owner, round, epochs=EPOCHS, size=2):
    """What a client takes in a round; only the order of the samples is the library's."""
    samples, found = run.module.data.train[owner], []
    for epoch in range(epochs):
        order = torch.randperm(len(samples), generator=stream(0, "local batches", round, owner, epoch))
        found += [batch(run, part) for part in samples[order].split(size)]
    return found


def gradient(row, x, y):
    """Of the mean cross-entropy of scores x W' + b, in closed form."""
    scores = x @ row[:15].reshape(3, 5).T + row[15:]
    shares = np.exp(scores - scores.max(1, keepdims=True))
    off = (shares / shares.sum(1, keepdims=True) - np.eye(3)[y]) / len(y)
    return np.concatenate([(off.T @ x).ravel(), off.sum(0)])


def metropolis(up, graph=GRAPH):
    """Weights [n, n] of the clients that are up; the others keep their models."""
    n = len(graph)
    links = np.array([[graph.has_edge(i, j) and up[i] and up[j] for j in range(n)] for i in range(n)])
    degrees = links.sum(1)
    weights = np.zeros((n, n))
    for i, j in zip(*links.nonzero(), strict=True):
        weights[i, j] = 1 / (1 + max(degrees[i], degrees[j]))
    return weights + np.diag(1 - weights.sum(1))
