"""Runs of clients that do not wait for each other, on the numbers of a case."""

# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False

from __future__ import annotations

from typing import Any

import networkx as nx
import numpy as np
import torch

from conformance.own.runs import BatchRun
from dfl_lightning import callbacks as cb
from dfl_lightning.links import Links
from dfl_lightning.objectives import Plain

Outputs = dict[str, Any]


class _GivenPartners(cb.Gossip):
    """Choice of the neighbour that is given for each training of each client; -1: none."""

    def __init__(self, partners) -> None:
        super().__init__(k=1)
        self.partners = partners

    def on_select(self, round) -> None:
        """Select the given neighbours of the clients that finish."""
        i = torch.nonzero(round.receivers).squeeze(1)
        j = torch.as_tensor([self.partners[client, round.cycles[client]] for client in i.tolist()])
        round.selected = Links.of(i[j >= 0], j[j >= 0], round.num_nodes)


def _clock(x, seconds, until) -> cb.Asynchronous:
    samples = [part.shape[1] for part in x]
    speeds = [float(count / one) for count, one in zip(samples, seconds, strict=True)]
    return cb.Asynchronous(speed=speeds, every=float(until))


def adpsgd(layers, models, x, y, lr, seconds, partners, until) -> Outputs:
    """Run plain training, and averages of pairs."""
    clock = _clock(x, seconds, until)
    policies = [clock, _GivenPartners(partners), cb.Pairwise()]
    rows = {"models": models, "training_starts": models}
    run = BatchRun(policies, x, y, layers, nx.complete_graph(len(x)), rows, Plain(), lr)
    run.go()
    return {"models": run.rows(), "trainings": clock.trainings.numpy()}


def fedbuff(layers, model, x, y, lr, seconds, until, k, step, power) -> Outputs:
    """Run plain training, and a server that collects updates."""
    return _server(layers, model, x, y, lr, seconds, until, cb.Buffered(k, step, power))


def fedasync(layers, model, x, y, lr, seconds, until, step, power) -> Outputs:
    """Run plain training, and a server that goes towards each model."""
    return _server(layers, model, x, y, lr, seconds, until, cb.Buffered(1, step, power, "model"))


def _server(layers, model, x, y, lr, seconds, until, aggregation) -> Outputs:
    policies = [_clock(x, seconds, until), cb.Gossip(k="all"), aggregation]
    rows = {"models": model, "training_starts": model}
    run = BatchRun(policies, x, y, layers, "server", rows, Plain(), lr)
    run.go()
    starts = run.rows("training_starts")[: len(x)]
    return {"model": run.rows()[-1], "starts": starts, "versions": np.int64(aggregation.version)}
