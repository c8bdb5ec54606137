"""Rounds with adapters of low rank, on the numbers of a case."""

# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False

from __future__ import annotations

from typing import Any

import networkx as nx
import numpy as np
import torch
from torch import nn

from conformance.own.runs import BatchRun, graph_of
from dfl_lightning import callbacks as cb
from dfl_lightning.models import LoRA
from dfl_lightning.objectives import Alternating, FedPer, Plain
from dfl_lightning.round.objective import Objective
from dfl_lightning.round.record import Round

Found = dict[str, Any]


class _Run:
    """A run of clients with one adapted layer that average with Metropolis weights."""

    def __init__(
        self,
        weight,
        bias,
        a,
        b,
        scale,
        x,
        y,
        graph,
        active,
        lr,
        objective: Objective,
        rounds=1,
        factors="both",
        **more,
    ) -> None:
        classes, inputs = weight.shape
        rank = b.shape[2]
        base = nn.Linear(inputs, classes)
        with torch.no_grad():
            base.weight.copy_(torch.as_tensor(weight))
            base.bias.copy_(torch.as_tensor(bias))
        network = LoRA(nn.Sequential(base), rank, scale * rank, ["network.0"], factors=factors)
        self._of_a = 0
        if factors == "B":  # A is the same for all, and no part of their models
            network.get_parameter("network.0.lora_A").data = torch.as_tensor(a, dtype=torch.float32)
            rows = b.reshape(len(b), -1)
        else:
            self._of_a = a[0].size
            rows = np.concatenate([a.reshape(len(a), -1), b.reshape(len(b), -1)], 1)
        self._shapes = (rank, inputs), (classes, rank)
        policies = [cb.Gossip(k="all"), cb.Metropolis(), cb.ProductError()]
        self._run = BatchRun(
            *(policies, x, y, [inputs, classes], nx.Graph(graph_of(graph)), {"models": rows}, objective, lr),
            active=active,
            rounds=rounds,
            network=network,
            **more,
        )
        self._rounds = rounds

    def go(self) -> Round:
        """Run the rounds; return the record of the last one."""
        return self._run.go(rounds=self._rounds)

    @property
    def a(self) -> np.ndarray:
        """A of each client, [m, rank, inputs]."""
        return self._run.rows()[:, : self._of_a].reshape(-1, *self._shapes[0])

    @property
    def b(self) -> np.ndarray:
        """B of each client, [m, classes, rank]."""
        return self._run.rows()[:, self._of_a :].reshape(-1, *self._shapes[1])


def lora_gossip(weight, bias, a, b, scale, x, y, graph, active, lr) -> Found:
    """Run plain training of both factors, and the monitor of the product's error."""
    run = _Run(weight, bias, a, b, scale, x, y, graph, active, lr, Plain())
    error = run.go().metrics["product_error"]
    return {"a": run.a, "b": run.b, "error": np.array(error)}


def ffa_lora(weight, bias, a, b, scale, x, y, graph, active, lr) -> Found:
    """Run plain training of B."""
    run = _Run(weight, bias, a, b, scale, x, y, graph, active, lr, Plain(), factors="B")
    run.go()
    return {"b": run.b}


def fedsa_lora(weight, bias, a, b, scale, x, y, graph, active, lr) -> Found:
    """Run joint training of both factors; B is personal."""
    run = _Run(weight, bias, a, b, scale, x, y, graph, active, lr, FedPer(), shared=["*lora_A"])
    run.go()
    return {"a": run.a, "b": run.b}


def adf_lora(weight, bias, a, b, scale, x, y, graph, active, lr, rounds) -> Found:
    """Run the training of one factor in turn."""
    run = _Run(weight, bias, a, b, scale, x, y, graph, active, lr, Alternating(), rounds)
    run.go()
    return {"a": run.a, "b": run.b}
