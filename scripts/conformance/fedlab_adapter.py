"""FedLab (PyPI: fedlab) on the conformance cases: its trainers train, its aggregator averages their models.

pip install fedlab && python -m dfl_lightning.conformance scripts/conformance/fedlab_adapter.py
"""

# mypy: ignore-errors

from __future__ import annotations

import copy
import itertools

import numpy as np
import torch
from fedlab.contrib.algorithm.basic_client import SGDSerialClientTrainer
from fedlab.contrib.algorithm.ditto import DittoSerialClientTrainer
from fedlab.contrib.algorithm.fedprox import FedProxSerialClientTrainer
from fedlab.contrib.algorithm.ifca import IFCASerialClientTrainer, IFCAServerHander
from fedlab.utils import Aggregators
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)


def network(layers):
    parts = [[nn.Linear(int(a), int(b)), nn.Tanh()] for a, b in itertools.pairwise(layers)]
    return nn.Sequential(*[module for part in parts for module in part][:-1])


class Batches:
    """Data of the clients, in the given order; FedLab asks for it by `get_dataloader`."""

    def __init__(self, x, y):
        data = [(torch.tensor(a.reshape(-1, a.shape[-1])), torch.tensor(b.ravel())) for a, b in zip(x, y, strict=True)]
        self.sets = [TensorDataset(*pair) for pair in data]

    def get_dataloader(self, client, batch_size):
        """Return a loader of a client's batches."""
        return DataLoader(self.sets[client], batch_size=batch_size)

    get_data_loader = get_dataloader


def trainer(kind, layers, x, y, lr, epochs=1, **options):
    found = kind(network(layers), len(x))
    found.setup_dataset(Batches(x, y))
    found.setup_optim(int(epochs), x[0].shape[1], lr, **options)
    return found


def averaged(rows, x):
    samples = [part.shape[0] * part.shape[1] for part in x]
    return Aggregators.fedavg_aggregate(rows, torch.tensor(samples, dtype=torch.float64)).numpy()


def _served(kind, layers, model, x, y, lr, mine=None, epochs=1, **options):
    party = trainer(kind, layers, x, y, lr, epochs, **options)
    mine = list(range(len(x))) if mine is None else mine
    party.local_process([torch.tensor(model)], mine)
    return {"model": averaged([copy.deepcopy(package[0]) for package in party.uplink_package], [x[i] for i in mine])}


def fedavg(layers, model, x, y, active, lr, epochs):
    if not any(active):
        raise NotImplementedError("a round without clients")
    mine = [int(i) for i in np.flatnonzero(active)]
    return _served(SGDSerialClientTrainer, layers, model, x, y, lr, mine, epochs)


def fedprox(layers, model, x, y, lr, mu):
    return _served(FedProxSerialClientTrainer, layers, model, x, y, lr, mu=mu)


def ditto(layers, model, personal, x, y, lr, lam, rounds):
    party = trainer(DittoSerialClientTrainer, layers, x, y, lr)
    party.local_process([torch.tensor(model)], list(range(len(x))))
    return {"model": averaged([package[0] for package in party.uplink_package], x)}


def ifca(layers, models, x, y, lr, epochs):
    party = trainer(IFCASerialClientTrainer, layers, x, y, lr, epochs)
    server = IFCAServerHander(network(layers), 1, 1.0)
    server.setup_optim(0, len(models), [torch.tensor(row) for row in models])
    party.local_process(server.downlink_package, list(range(len(x))))
    server.global_update(party.uplink_package)
    return {"models": torch.stack(server.global_models).numpy()}
