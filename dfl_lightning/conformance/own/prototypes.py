"""FedProto on the numbers of a case."""

# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False

from __future__ import annotations

from typing import Any

import numpy as np

from dfl_lightning import callbacks as cb
from dfl_lightning.conformance.own.runs import BatchRun, graph_of
from dfl_lightning.objectives import FedProto


def fedproto(layers, models, prototypes, x, y, graph, active, lr, lam, weighting, rounds) -> dict[str, Any]:
    """Run FedProto and PrototypeAverage; prototypes lie in the columns of the last layer's weight."""
    known = ~np.isnan(prototypes)
    m, (classes, width) = len(models), prototypes.shape[1:]
    columns = slice(models.shape[1] - classes * (width + 1), models.shape[1] - classes)
    kept = np.zeros_like(models)
    kept[:, columns] = np.where(known, prototypes, 0.0).reshape(m, -1)
    policies = [cb.Gossip(k="all"), cb.PrototypeAverage(weighting)]
    rows = {"models": models, "prototypes": kept}
    run = BatchRun(policies, x, y, layers, graph_of(graph), rows, FedProto(lam), lr, active=active, rounds=rounds)
    run.set_number("_has_prototypes", known.any((1, 2)).astype(float))
    run.go(rounds=rounds)
    found = run.rows("prototypes")[:, columns].reshape(m, classes, width)
    counts = np.array([np.bincount(np.ravel(own), minlength=classes) for own in y]) * active[:, None]
    reached = (graph | np.eye(m, dtype=bool)).astype(int) @ counts > 0
    has = np.where(active[:, None], reached, known.all(2))
    return {"models": run.rows(), "prototypes": np.where(has[..., None], found, np.nan)}
