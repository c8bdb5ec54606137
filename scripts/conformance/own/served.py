"""Rounds of local rules under a server, on the numbers of a case."""

# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from conformance.own.runs import BatchRun
from dfl_lightning import callbacks as cb
from dfl_lightning.objectives import APFL, MOON, Ditto, FedPer, FedProx, FedRep, PerFedAvg, Plain
from dfl_lightning.round.objective import Objective

Outputs = dict[str, Any]


def _run(layers, rows, x, y, lr, objective: Objective, epochs=1, active=None, rounds=1, **model) -> BatchRun:
    """Build a run of FedAvg with a local rule."""
    policies = [cb.Gossip(k="all"), cb.SampleWeighted()]
    run = BatchRun(policies, x, y, layers, "server", rows, objective, lr, epochs, active, rounds, **model)
    return run


def fedavg(layers, model, x, y, active, lr, epochs) -> Outputs:
    """Run plain training, and an average weighted by numbers of samples."""
    run = _run(layers, {"models": model}, x, y, lr, Plain(), epochs, active)
    run.go()
    return {"model": run.rows()[-1]}


def fedprox(layers, model, x, y, lr, mu) -> Outputs:
    """Run FedProx's local rule."""
    run = _run(layers, {"models": model}, x, y, lr, FedProx(mu))
    run.go()
    return {"model": run.rows()[-1]}


def ditto(layers, model, personal, x, y, lr, lam, rounds) -> Outputs:
    """Run Ditto's local rule."""
    run = _run(layers, {"models": model, "personal": personal}, x, y, lr, Ditto(lam), rounds=rounds)
    run.go(rounds=rounds)
    return {"model": run.rows()[-1], "personal": run.rows("personal")[: len(x)]}


def moon(layers, model, previous, x, y, active, lr, mu, tau, rounds) -> Outputs:
    """Run MOON's local rule."""
    rows = {"models": model, "previous": previous}
    run = _run(layers, rows, x, y, lr, MOON(mu, tau), active=active, rounds=rounds)
    run.go(rounds=rounds)
    return {"model": run.rows()[-1], "previous": run.rows("previous")[: len(x)]}


def apfl(layers, model, local, alpha, adapt, x, y, lr, rounds) -> Outputs:
    """Run APFL's local rule."""
    objective = APFL(0.5, "round" if adapt else "never")
    run = _run(layers, {"models": model, "local": local}, x, y, lr, objective, rounds=rounds)
    run.set_number("alpha", alpha)
    run.go(rounds=rounds)
    m = len(x)
    return {
        "model": run.rows()[-1],
        "local": run.rows("local")[:m],
        "alpha": run.number("alpha"),
        "mixture": run.rows("mixture")[:m],
    }


def per_fedavg(layers, model, x, y, alpha, beta, order) -> Outputs:
    """Run Per-FedAvg's local rule, on the engine `loop`, which can compute the Hessian."""
    run = _run(layers, {"models": model}, x, y, beta, PerFedAvg(alpha, order), engine="loop")
    run.go()
    return {"model": run.rows()[-1]}


def _body_and_heads(layers, body, heads, x, y, lr, epochs, objective) -> Outputs:
    m, width = len(x), len(body)
    models = np.concatenate([np.tile(body, (m + 1, 1)), np.vstack([heads, heads[:1]])], 1)
    shared = [f"{2 * layer}.*" for layer in range(len(layers) - 2)]
    run = _run(layers, {"models": models}, x, y, lr, objective, epochs, shared=shared)
    run.go()
    return {"body": run.rows()[m, :width], "heads": run.rows()[:m, width:]}


def fedrep(layers, body, heads, x, y, lr, head_epochs, body_epochs) -> Outputs:
    """Train the head, then the body; send the body only."""
    return _body_and_heads(layers, body, heads, x, y, lr, body_epochs, FedRep(head_epochs))


def fedper(layers, body, heads, x, y, lr, epochs) -> Outputs:
    """Train head and body together; send the body only."""
    return _body_and_heads(layers, body, heads, x, y, lr, epochs, FedPer())


def ifca(layers, models, x, y, lr, epochs) -> Outputs:
    """Run IFCA with one server for each cluster."""
    m, c = len(x), len(models)
    topology = {"generator": "server", "args": {"servers": c}}
    rows = {"models": np.vstack([np.zeros((m, models.shape[1])), models])}
    policies = [cb.IFCA(), cb.Uniform()]
    run = BatchRun(policies, x, y, layers, topology, rows, Plain(), lr, epochs, init="independent")
    round = run.go()
    chosen = round.jobs.terms[0].weights(m + c).rows - m
    return {"chosen": torch.as_tensor(chosen).numpy(), "models": run.rows()[m:]}
