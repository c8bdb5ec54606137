"""Rounds of clients that average with neighbours, and predictions, on the numbers of a case."""

# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False

from __future__ import annotations

from typing import Any

import networkx as nx
import numpy as np
import torch
from torch import Tensor

from conformance.own.runs import BatchRun, GivenRun, dense, graph_of, memory_of, network, weights_of, without_data
from dfl_lightning import callbacks as cb
from dfl_lightning.engines.scoring.prediction_rule import LabelledOutputs, Outputs
from dfl_lightning.functional import class_vectors, proximity
from dfl_lightning.links import LinkMemory
from dfl_lightning.objectives import D2, DFedSAM, DisPFL, GradientTracking, PFedGraph, Plain, QGDSGDm
from dfl_lightning.round.senders import Senders

Found = dict[str, Any]


def gossip(before, trained, chosen, active) -> Found:
    """Run a round of Gossip with all neighbours in a graph of the chosen links, and Uniform."""
    rows = {"models": before, "given": trained}
    run = GivenRun(
        [cb.Gossip(k="all"), cb.Uniform()],
        *without_data(len(before), before.shape[1]),
        graph_of(chosen),
        rows,
        active=active,
    )
    round = run.go()
    return {"weights": weights_of(round, len(before)), "models": run.rows()}


def dsgd(layers, models, x, y, graph, active, lr) -> Found:
    """Run plain training and Metropolis weights."""
    policies = [cb.Gossip(k="all"), cb.Metropolis()]
    run = BatchRun(policies, x, y, layers, nx.Graph(graph_of(graph)), {"models": models}, Plain(), lr, active=active)
    round = run.go()
    return {"weights": weights_of(round, len(models)), "models": run.rows()}


def gradient_tracking(layers, models, correction, x, y, graph, lr, steps, rounds) -> Found:
    """Run GradientTracking and Metropolis weights."""
    policies = [cb.Gossip(k="all"), cb.Metropolis()]
    rows = {"models": models, "correction": correction}
    topology = nx.Graph(graph_of(graph))
    run = BatchRun(policies, x, y, layers, topology, rows, GradientTracking(), lr, epochs=steps, rounds=rounds)
    run.go(rounds=rounds)
    return {"models": run.rows(), "correction": run.rows("correction")}


def d2(layers, models, x, y, graph, lr, rounds) -> Found:
    """Run D2 and Metropolis weights."""
    policies, topology = [cb.Gossip(k="all"), cb.Metropolis()], nx.Graph(graph_of(graph))
    rows = {"models": models, "descended": models}
    run = BatchRun(policies, x, y, layers, topology, rows, D2(), lr, rounds=rounds)
    run.go(rounds=rounds)
    return {"models": run.rows()}


class _GivenDraws(cb.CHOCO):
    """CHOCO with given random numbers, the row set `draws`."""

    row_sets = {**cb.CHOCO.row_sets, "draws": "zeros"}

    def send(self, updates: Tensor, senders: Senders) -> Tensor:
        """Send by CHOCO, with the given random numbers."""
        senders.uniform = lambda shape: senders.rows("draws").view(*shape)  # type: ignore[method-assign]
        return super().send(updates, senders)


def choco(layers, models, public, x, y, graph, lr, gamma, kept, bits, draws, rounds) -> Found:
    """Run CHOCO and CHOCOMix."""
    messages = _GivenDraws(bits=bits) if bits else cb.CHOCO(share=kept / models.shape[1])
    policies = [cb.Gossip(k="all"), messages, cb.CHOCOMix(gamma)]
    rows, topology = {"models": models, "public": public, "draws": draws}, nx.Graph(graph_of(graph))
    run = BatchRun(policies, x, y, layers, topology, rows, Plain(), lr, rounds=rounds)
    run.go(rounds=rounds)
    return {"models": run.rows(), "public": run.rows("public")}


def qg_dsgdm(layers, models, momentum, x, y, graph, lr, beta, mu, nesterov, rounds) -> Found:
    """Run QGDSGDm and Metropolis weights."""
    policies, topology = [cb.Gossip(k="all"), cb.Metropolis()], nx.Graph(graph_of(graph))
    rows = {"models": models, "momentum": momentum}
    run = BatchRun(policies, x, y, layers, topology, rows, QGDSGDm(beta, mu, nesterov), lr, rounds=rounds)
    run.go(rounds=rounds)
    return {"models": run.rows(), "momentum": run.rows("momentum")}


def dfedsam(layers, models, x, y, graph, active, lr, rho, steps) -> Found:
    """Run DFedSAM, and a number of steps of Metropolis weights."""
    policies, topology = [cb.Gossip(k="all"), cb.Metropolis(steps)], nx.Graph(graph_of(graph))
    run = BatchRun(policies, x, y, layers, topology, {"models": models}, DFedSAM(rho), lr, active=active)
    run.go()
    return {"models": run.rows()}


def dispfl(layers, models, masks, x, y, graph, lr, density, prune, round, rounds) -> Found:
    """Run DisPFL and MaskedAverage."""
    policies = [cb.Gossip(k="all"), cb.MaskedAverage()]
    rows = {"models": models, "mask": masks, "next_mask": masks}
    last = rounds - round
    run = BatchRun(
        policies, x, y, layers, graph_of(graph), rows, DisPFL(density, prune), lr, rounds=last, first_round=round
    )
    run.go()
    return {"masks": run.rows("mask"), "models": run.rows()}


def push_sum(models, held, trained, graph) -> Found:
    """Run PushSum on directed links."""
    average = cb.PushSum()
    rows = {"models": models, "given": trained}
    x, y, layers = without_data(len(models), models.shape[1])
    run = GivenRun([cb.Gossip(k="all"), average], x, y, layers, graph_of(graph), rows)
    average.held = torch.as_tensor(held)
    run.go()
    return {"held": average.held.numpy(), "models": run.rows()}


def pens(layers, trained, x, y, sampled, top, stage_one, counts) -> Found:
    """Run the last round of stage one of PENS, and Uniform."""
    m = len(trained)
    selection = cb.PENS(k=1, sampled=max(top, m), top=top, stage_one=stage_one)
    rows = {"models": trained, "given": trained}
    last = stage_one - 1
    run = GivenRun([selection, cb.Uniform()], x, y, layers, "complete", rows, round=last)
    others = ~np.eye(m, dtype=bool)
    selection.counts = LinkMemory.empty(m, torch.long)
    known = memory_of(counts, others).links
    selection.counts.write(known, torch.as_tensor(counts)[known.receivers, known.senders])
    round = run.go({"pens sampled": torch.as_tensor(sampled)})
    assert round.scores is not None
    selection.expected.write(known, torch.full((len(known),), top * stage_one / (m - 1), dtype=torch.float64))
    return {
        "losses": dense(round.candidates, -round.scores),
        "chosen": dense(round.selected),
        "counts": dense(known, selection.counts.read(known, 0).double(), 0.0),
        "peers": selection._peers(round).mask.numpy(),
        "models": run.rows(),
    }


def federico(layers, trained, x, y, fetched, averages, beta) -> Found:
    """Run FedeRiCo's choice and ScoreWeighted."""
    m = len(trained)
    selection = cb.FedeRiCo(k=m, epsilon=0.0, beta=beta)
    rows = {"models": trained, "given": trained}
    run = GivenRun([selection, cb.ScoreWeighted()], x, y, layers, graph_of(fetched), rows)
    selection.averages = memory_of(averages, ~np.isnan(averages))
    round = run.go()
    found = selection.averages
    return {
        "averages": dense(found.links, found.values),
        "weights": weights_of(round, m),
        "models": run.rows(),
    }


def federico_em(layers, models, x, y, fetched, averages, beta, lr, rounds) -> Found:
    """Run FedeRiCo's choice and FedeRiCoStep."""
    m = len(models)
    selection = cb.FedeRiCo(k=m, epsilon=0.0, beta=beta)
    policies = [selection, cb.FedeRiCoStep()]
    run = BatchRun(policies, x, y, layers, graph_of(fetched), {"models": models}, Plain(), lr, rounds=rounds)
    selection.averages = memory_of(averages, ~np.isnan(averages))
    round = run.go(rounds=rounds)
    found = selection.averages
    return {"averages": dense(found.links, found.values), "weights": weights_of(round, m), "models": run.rows()}


def pfedgraph(layers, models, x, y, graph, alpha, alike, lam, sign, lr, initial, direction) -> Found:
    """Run PFedGraph and SimilarityWeighted."""
    policies = [cb.Gossip(k="all"), cb.SimilarityWeighted(alpha, alike)]
    rows = {"models": models, "initial": initial, "direction": direction}
    run = BatchRun(policies, x, y, layers, graph_of(graph), rows, PFedGraph(lam, sign), lr)
    round = run.go()
    return {
        "weights": weights_of(round, len(models)),
        "models": run.rows(),
        "direction": run.rows("direction"),
    }


def pacfl(trained, x, y, vectors, threshold) -> Found:
    """Run PACFL among all clients, and SampleWeighted."""
    m = len(trained)
    selection = cb.PACFL(threshold=threshold, vectors=vectors)
    layers, rows = [x.shape[-1], 2], {"models": trained, "given": trained}
    run = GivenRun([selection, cb.SampleWeighted()], x, y, layers, "complete", rows)
    run.go()
    signatures = [class_vectors(torch.as_tensor(a), torch.as_tensor(b), vectors) for a, b in zip(x, y, strict=True)]
    together = selection.mates.mask.numpy() | np.eye(m, dtype=bool)
    first = together.argmax(1)
    clusters = np.searchsorted(np.unique(first), first)
    return {"degrees": proximity(signatures).numpy(), "clusters": clusters, "models": run.rows()}


def knn_per(layers, model, x, y, queries, k, scale, weight) -> Found:
    """Run the prediction KNN."""
    whole = network(layers).double()
    torch.nn.utils.vector_to_parameters(torch.tensor(model), whole.parameters())
    with torch.no_grad():
        stored, asked = (whole[:-1](torch.as_tensor(part)) for part in (x, queries))
        memory = LabelledOutputs(whole[-1](stored), {"head": stored}, torch.as_tensor(y))
        found = cb.KNN(k=k, weight=weight, scale=scale).predict(
            Outputs(whole[-1](asked), {"head": asked}), {"train": memory}
        )
    return {"probabilities": found.numpy()}
