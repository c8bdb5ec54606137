"""Rounds with the policies that select, substitute and weigh, on the numbers of a case."""

# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# A function's arguments are the inputs of its cases, which the files describe.

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from conformance.own.runs import GivenRun, dense, graph_of, memory_of, weights_of, without_data
from dfl_lightning import callbacks as cb
from dfl_lightning.links import Links

Outputs = dict[str, Any]


# --- AFIND+ -----------------------------------------------------------------------------------------------------------
def afind(layers, layer, before, initial, trained, x, y, graph, active, nu, tau, temperature) -> Outputs:
    """Run a round of AFIND, AdaptiveThreshold and Boltzmann."""
    policies = [
        cb.AFIND(nu=nu, proxy_layer=str(2 * layer)),
        cb.AdaptiveThreshold(tau=tau),
        cb.Boltzmann(temperature=temperature),
    ]
    rows = {"models": before, "initial": initial, "given": trained}
    run = GivenRun(policies, x, y, layers, graph_of(graph), rows, active=active)
    round, m = run.go(), len(before)
    mixed = round.has("weights")
    weights = weights_of(round, m)
    return {
        "cosines": dense(round.candidates, round.similarity) if mixed else np.full((m, m), np.nan),
        "threshold": round.threshold.numpy() * active if round.threshold is not None else np.zeros(m),
        "selected": dense(round.selected) if mixed else np.zeros((m, m), bool),
        "weights": weights,
        "models": run.rows(),
    }


def afind_literal(
    layers, layer, before, trained, x, y, graph, probabilities, threshold, nu, tau, gamma, temperature
) -> Outputs:
    """Run a round of AFIND, AdaptiveThreshold and Boltzmann as printed."""
    selection = cb.AFIND(nu=nu, rule="literal", proxy="grad_at_receiver", center=False, proxy_layer=str(2 * layer))
    theta = cb.AdaptiveThreshold(tau=tau, rule="literal")
    average = cb.Boltzmann(temperature=temperature, contribution="printed", gamma=gamma, include_self=False)
    rows = {"models": before, "given": trained}
    run = GivenRun([selection, theta, average], x, y, layers, graph_of(graph).to_undirected(), rows, round=1)
    selection.probabilities = memory_of(probabilities, graph)
    theta.threshold = torch.as_tensor(threshold)
    round, m = run.go(), len(before)
    assert selection.probabilities is not None
    known = Links.from_mask(torch.as_tensor(graph))
    return {
        "selected": dense(round.selected),
        "weights": weights_of(round, m),
        "models": run.rows(),
        "probabilities": dense(known, selection.probabilities.read(known), 0.0),
        "threshold": theta.threshold.numpy(),
    }


def afind_distance(layers, layer, before, trained, x, y, graph, k, nu) -> Outputs:
    """Run a round of AFIND by distances, and Uniform."""
    name = str(2 * layer)
    selection = cb.AFIND(nu=nu, k=k, proxy="grad_at_receiver", similarity="distance", center=False, proxy_layer=name)
    rows = {"models": before, "given": trained}
    run = GivenRun([selection, cb.Uniform()], x, y, layers, graph_of(graph).to_undirected(), rows)
    round = run.go()
    return {
        "similarity": dense(round.candidates, round.similarity),
        "ratio": dense(round.candidates, round.scores),
        "selected": dense(round.selected),
        "models": run.rows(),
    }


def afind_activations(layers, before, trained, x, y, graph, active, k, nu) -> Outputs:
    """Run a round of AFIND by activations, and Uniform."""
    selection = cb.AFIND(nu=nu, k=k, proxy="activations")
    rows = {"models": before, "given": trained}
    run = GivenRun([selection, cb.Uniform()], x, y, layers, graph_of(graph), rows, active=active)
    round = run.go()
    return {
        "cosines": dense(round.candidates, round.similarity),
        "ratio": dense(round.candidates, round.scores),
        "selected": dense(round.selected),
        "models": run.rows(),
    }


def afind_rounds(
    layers, layer, before, trained, x, y, graph, probabilities, threshold, asked, nu, tau, gamma, temperature
) -> Outputs:
    """Run a round as printed with a personal last layer, normalised entropies and losses averaged over rounds."""
    selection = cb.AFIND(nu=nu, rule="literal", proxy="grad_at_receiver", center=False, proxy_layer=str(2 * layer))
    theta = cb.AdaptiveThreshold(tau=tau, rule="literal", normalise=True)
    average = cb.Boltzmann(temperature, contribution="printed", gamma=gamma, smooth="rounds", include_self=False)
    rows = {"models": before, "given": trained}
    shared = [f"{2 * place}.*" for place in range(len(layers) - 2)]
    graph_given = graph_of(graph).to_undirected()
    run = GivenRun([selection, theta, average], x, y, layers, graph_given, rows, round=1, model={"shared": shared})
    selection.probabilities = memory_of(probabilities, graph)
    average.asked_losses = memory_of(asked, ~np.isnan(asked))
    theta.threshold = torch.as_tensor(threshold)
    round, m = run.go(), len(before)
    known = Links.from_mask(torch.as_tensor(graph))
    return {
        "selected": dense(round.selected),
        "weights": weights_of(round, m),
        "models": run.rows(),
        "probabilities": dense(known, selection.probabilities.read(known), 0.0),
        "threshold": theta.threshold.numpy(),
        "asked": dense(known, average.asked_losses.read(known)),
    }


# --- PANM -------------------------------------------------------------------------------------------------------------
def panm(
    layers, stage, metric, alpha, k, before, initial, trained, x, y, neighbours, sampled, strangers, literal=False
) -> Outputs:
    """Run a round of PANM, in its stage one or with a matching, and Uniform."""
    m, first = len(before), stage == "initialisation"
    most = max(1, int(strangers.sum(1).max()), int(sampled.sum(1).max()))
    selection = cb.PANM(
        metric=metric,
        k=k,
        l=most,
        stage_one=2 if first else 1,
        tau=2,
        alpha=alpha,
        candidates="all" if literal else "new",
        matching="literal" if literal else "oriented",
    )
    rows = {"models": before, "initial": initial, "given": trained}
    run = GivenRun([selection, cb.Uniform()], x, y, layers, "complete", rows, round=1)
    selection.neighbours = Links.from_mask(torch.as_tensor(neighbours))
    drawn = torch.as_tensor(strangers)
    round = run.go(
        {
            "panm candidates": drawn if literal and first else torch.ones(m, m, dtype=torch.bool),
            "panm strangers": drawn,
            "panm sampled": torch.as_tensor(sampled),
        }
    )
    return {
        "similarity": dense(round.candidates, round.similarity),
        "neighbours": selection.neighbours.mask.numpy(),
        "models": run.rows(),
    }


def panm_literal(**inputs: Any) -> Outputs:
    """Run a round of PANM with the labels of a matching as printed, and Uniform."""
    return panm(**inputs, literal=True)


# --- DPFL -------------------------------------------------------------------------------------------------------------
def dpfl(layers, trained, x, y, samples, order, coins, budget) -> Outputs:
    """Run the first selection of DPFL, among all candidates (BGGC), and SampleWeighted."""
    m = len(trained)
    candidates, positions, coin = np.zeros((m, m), bool), np.zeros((m, m)), np.zeros((m, m))
    for i in range(m):
        for position, j in enumerate(order[i]):
            if j >= 0:
                candidates[i, j], positions[i, j], coin[i, j] = True, position, coins[i, position]
    policies = [cb.DPFL(budget=budget, initial_epochs=1), cb.SampleWeighted(count="train")]
    run = GivenRun(policies, x, y, layers, graph_of(candidates), {"models": trained, "given": trained}, samples=samples)
    draws = {"DPFL order": torch.as_tensor(positions), "DPFL coins": torch.as_tensor(coin)}
    round = run.go(draws)
    return {"chosen": dense(round.selected), "models": run.rows()}


# --- FL-FDMS ----------------------------------------------------------------------------------------------------------
def _served(model, updates, active, server_step, substitution=None, rows=None):
    """Build a run whose server has a model to which clients add updates; classes and inputs have no effect."""
    m = len(updates)
    policies = [cb.Gossip(k="all"), cb.Uniform(server_step=server_step), *([substitution] if substitution else [])]
    given = {"models": model, "given": model + updates, **(rows or {})}
    return GivenRun(policies, *without_data(m, len(model)), "server", given, active=active, round=1)


def fdms(model, updates, active, scores, counts, server_step) -> Outputs:
    """Run a round of FDMS at a server, after a first one."""
    substitution, m = cb.FDMS(), len(updates)
    run = _served(model, updates, active, server_step, substitution)
    substitution.scores, substitution.counts = torch.as_tensor(scores), torch.as_tensor(counts)
    round = run.go()
    substitute = np.full(m, -1)
    if round.has("substitute"):
        substitute[round.selected.senders.numpy()] = torch.as_tensor(round.substitute).numpy()
    return {
        "scores": substitution.scores.numpy(),
        "counts": substitution.counts.numpy(),
        "substitute": substitute,
        "model": run.rows()[m],
    }


def fdms_dropout(model, updates, active, server_step) -> Outputs:
    """Run a round without a substitution."""
    run = _served(model, updates, active, server_step)
    run.go()
    return {"model": run.rows()[-1]}


def fdms_stale(model, updates, active, server_step, stored, has_stored) -> Outputs:
    """Run a round of Stale."""
    substitution, m = cb.Stale(), len(updates)
    run = _served(model, updates, active, server_step, substitution, {"stale": stored})
    substitution.seen = torch.as_tensor(has_stored)
    run.go()
    return {"model": run.rows()[m], "stored": run.rows("stale")[:m], "has_stored": substitution.seen.numpy()}


# --- FedFomo ----------------------------------------------------------------------------------------------------------
def fedfomo(layers, before, trained, x, y, graph, affinity, k, epsilon, coins, order) -> Outputs:
    """Run a round of FedFomo and FirstOrder, with given coins and random orders."""
    selection, m = cb.FedFomo(k=k, epsilon=epsilon, decay=0.0), len(before)
    rows = {"models": before, "given": trained}
    run = GivenRun([selection, cb.FirstOrder()], x, y, layers, graph_of(graph), rows)
    selection.affinity = memory_of(affinity, graph)
    tossed = torch.as_tensor(coins).T[:, :, None].expand(-1, m, m)  # a client has one coin for each step of its loop
    round = run.go({"fedfomo explores": tossed, "fedfomo explored": -torch.as_tensor(order).double()})
    worth = dense(round.candidates, round.scores)
    asking = np.flatnonzero(round.candidates.count.numpy())
    assert round.own_scores is not None
    worth[asking, asking] = round.own_scores.numpy()[asking]
    known = Links.from_mask(torch.as_tensor(graph))
    return {
        "asked": dense(round.candidates),
        "worth": worth,
        "weights": weights_of(round, m),
        "models": run.rows(),
        "affinity": dense(known, selection.affinity.read(known, 0.0), 0.0),
    }
