"""fluke (PyPI: fluke-fl) on the conformance cases: its clients train, its function averages their models.

pip install fluke-fl && python -m dfl_lightning.conformance scripts/conformance/fluke_adapter.py
"""

# mypy: ignore-errors

from __future__ import annotations

import copy
import itertools

import numpy as np
import torch
from fluke import FlukeENV
from fluke.algorithms.apfl import APFLClient
from fluke.algorithms.ditto import DittoClient
from fluke.algorithms.fedper import FedPerClient
from fluke.algorithms.fedprox import FedProxClient
from fluke.algorithms.fedrep import FedRepClient
from fluke.algorithms.per_fedavg import PerFedAVGClient, PerFedAVGOptimizer
from fluke.client import Client
from fluke.config import OptimizerConfigurator
from fluke.data import FastDataLoader
from fluke.nets import EncoderHeadNet
from fluke.utils.model import aggregate_models
from torch import nn

torch.set_default_dtype(torch.float64)
FlukeENV().set_inmemory(True)


def network(layers):
    parts = [[nn.Linear(a, b), nn.Tanh()] for a, b in itertools.pairwise(layers)]
    return nn.Sequential(*[module for part in parts for module in part][:-1])


def model_of(row, layers):
    found = network(layers)
    nn.utils.vector_to_parameters(torch.tensor(row), found.parameters())
    return found


def row_of(model):
    return nn.utils.parameters_to_vector(model.parameters()).detach().numpy().copy()


def loader(x, y, classes):
    data = torch.as_tensor(x.reshape(-1, x.shape[-1])), torch.as_tensor(y.ravel())
    return FastDataLoader(*data, num_labels=classes, batch_size=x.shape[1], skip_singleton=False)


def clients(kind, x, y, lr, layers, models=None, optimizer=torch.optim.SGD, **options):
    """Make a client of fluke for each client of the case."""
    found = []
    for i in range(len(x)):
        own = {} if models is None else {"model": models[i]}
        config = OptimizerConfigurator({"name": optimizer, "lr": lr})
        data = loader(x[i], y[i], int(layers[-1]))
        common = {"index": i, "train_set": data, "test_set": None, "optimizer_cfg": config}
        found.append(kind(**common, loss_fn=nn.CrossEntropyLoss(), **{"local_epochs": 1, **options}, **own))
    return found


def averaged(server, trained, x):
    """Compute the server's model after fluke's average, weighted by samples (`weighted: true`)."""
    samples = [part.shape[0] * part.shape[1] for part in x]
    return aggregate_models(server, trained, [n / sum(samples) for n in samples], 1.0)


def a_round(server, parties, x):
    for party in parties:
        party.model = copy.deepcopy(server)
        party.optimizer = None
        party.fit()
    return averaged(server, [party.model for party in parties], x)


def fedavg(layers, model, x, y, active, lr, epochs):
    if not any(active):
        raise NotImplementedError("a round without clients")
    mine = [i for i in range(len(x)) if active[i]]
    x, y = [x[i] for i in mine], [y[i] for i in mine]
    server = a_round(model_of(model, layers), clients(Client, x, y, lr, layers, local_epochs=int(epochs)), x)
    return {"model": row_of(server)}


def fedprox(layers, model, x, y, lr, mu):
    server = a_round(model_of(model, layers), clients(FedProxClient, x, y, lr, layers, mu=mu), x)
    return {"model": row_of(server)}


def ditto(layers, model, personal, x, y, lr, lam, rounds):
    own = [model_of(row, layers) for row in personal]
    parties = clients(DittoClient, x, y, lr, layers, own, tau=1, lam=lam)
    server = model_of(model, layers)
    for _ in range(rounds):
        server = a_round(server, parties, x)
    return {"model": row_of(server), "personal": np.array([row_of(party.personalized_model) for party in parties])}


def apfl(layers, model, local, alpha, adapt, x, y, lr, rounds):
    if adapt:
        raise NotImplementedError("alpha is fixed")
    own = [model_of(row, layers) for row in local]
    parties = clients(APFLClient, x, y, lr, layers, own)
    for party, share in zip(parties, alpha, strict=True):
        party.hyper_params.update(lam=float(share))
    server = model_of(model, layers)
    for _ in range(rounds):
        server = a_round(server, parties, x)
    kept = np.array([row_of(party.personalized_model) for party in parties])
    return {"model": row_of(server), "local": kept, "mixture": kept}  # it keeps one model for both


def per_fedavg(layers, model, x, y, alpha, beta, order):
    mode = {"first": "FO", "hessian": "HF"}[order]
    options = {"optimizer": PerFedAVGOptimizer, "mode": mode, "beta": beta}
    parties = clients(PerFedAVGClient, x, y, alpha, layers, **options)
    for party in parties:  # so many steps as the case has; fluke's default is one for each batch of an epoch
        party.train_set.n_batches //= 2 if order == "first" else 3
    return {"model": row_of(a_round(model_of(model, layers), parties, x))}


def parted(kind, layers, body, heads, x, y, lr, **options):
    whole = [model_of(np.concatenate([body, head]), layers) for head in heads]
    parties = clients(kind, x, y, lr, layers, [EncoderHeadNet(net[:-1], net[-1]) for net in whole], **options)
    server = copy.deepcopy(whole[0][:-1])
    for party in parties:
        party.fit()
    server = averaged(server, [party.model.get_global() for party in parties], x)
    return {"body": row_of(server), "heads": np.array([row_of(party.model.get_local()) for party in parties])}


def fedrep(layers, body, heads, x, y, lr, head_epochs, body_epochs):
    if not head_epochs:
        raise NotImplementedError("0 epochs of the head")
    return parted(FedRepClient, layers, body, heads, x, y, lr, local_epochs=int(head_epochs), tau=int(body_epochs))


def fedper(layers, body, heads, x, y, lr, epochs):
    return parted(FedPerClient, layers, body, heads, x, y, lr, local_epochs=int(epochs))
