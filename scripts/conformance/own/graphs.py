"""Rounds on time-varying graphs, on the numbers of a case."""

# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False

from __future__ import annotations

from typing import Any

from conformance.own.runs import GivenRun, graph_of, weights_of, without_data
from dfl_lightning import callbacks as cb
from dfl_lightning.objectives import Plain
from dfl_lightning.topology.generators.base_graph import base_rounds

Found = dict[str, Any]


def one_peer(models, round, rounds) -> Found:
    """Run the generator one_peer_exponential, with all neighbours and Uniform; training changes nothing."""
    run = GivenRun(
        [cb.Gossip(k="all"), cb.Uniform()],
        *without_data(*models.shape),
        {"generator": "one_peer_exponential"},
        {"models": models},
        Plain(),
        round=round,
        rounds=rounds,
    )
    last = run.go(rounds=rounds)
    return {"weights": weights_of(last, len(models)), "models": run.rows()}


def base_graph(models, k) -> Found:
    """Run the generator base_graph, with all neighbours and FromTopology; training changes nothing."""
    rounds = len(base_rounds(len(models), k))
    run = GivenRun(
        [cb.Gossip(k="all"), cb.FromTopology()],
        *without_data(*models.shape),
        {"generator": "base_graph", "args": {"k": k}},
        {"models": models},
        Plain(),
        rounds=rounds,
    )
    degree = max(int(run.go().reachable.count.max()) for _ in range(rounds))
    return {"rounds": rounds, "degree": degree, "models": run.rows()}


def epidemic(trained, sends) -> Found:
    """Run a round of Gossip with all clients that send to a receiver, and Uniform."""
    policies, rows = [cb.Gossip(k="all"), cb.Uniform()], {"models": trained, "given": trained}
    run = GivenRun(policies, *without_data(*trained.shape), graph_of(sends.T), rows)
    round = run.go()
    return {"weights": weights_of(round, len(trained)), "models": run.rows()}
