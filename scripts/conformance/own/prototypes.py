"""FedProto on the numbers of a case."""

# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from conformance.own.runs import BatchRun, graph_of, network
from dfl_lightning import callbacks as cb
from dfl_lightning.engines.scoring.prediction_rule import Outputs
from dfl_lightning.objectives import FedProto


def fedproto(
    layers, models, prototypes, x, y, server, graph, active, lr, lam, weighting, rounds, queries
) -> dict[str, Any]:
    """Run FedProto and PrototypeAverage; prototypes lie in the columns of the last layer's weight."""
    m, (classes, width) = len(models), prototypes.shape[1:]
    columns = slice(models.shape[1] - classes * (width + 1), models.shape[1] - classes)
    kept = np.zeros((m + server, models.shape[1]))
    kept[:m, columns] = np.nan_to_num(prototypes).reshape(m, -1)
    kept[m:] = kept[0]
    average, prediction = cb.PrototypeAverage(weighting), cb.NearestPrototype()
    policies = [cb.Gossip(k="all"), average, prediction]
    topology = "server" if server else graph_of(graph)
    rows = {"models": models, "prototypes": kept}
    run = BatchRun(policies, x, y, layers, topology, rows, FedProto(lam), lr, active=active, rounds=rounds)
    average.known = torch.from_numpy(~np.isnan(prototypes[0]).any(1))
    run.go(rounds=rounds)
    final = run.rows("prototypes")[:m, columns]
    predicted = []
    for row, of_client in zip(run.rows()[:m], final, strict=True):
        whole = network(layers).double()
        torch.nn.utils.vector_to_parameters(torch.from_numpy(row), whole.parameters())
        with torch.no_grad():
            features = whole[:-1](torch.as_tensor(queries))
            query = Outputs(whole[-1](features), {"head": features}, rows={"prototypes": torch.from_numpy(of_client)})
        predicted.append(prediction.predict(query, {}).argmax(1).numpy())
    final = final.reshape(m, classes, width)
    return {
        "models": run.rows()[:m],
        "prototypes": np.where((final != 0).any(-1, keepdims=True), final, np.nan),
        "predicted": np.array(predicted),
    }
