"""Clients whose model is one number, trained half of the way to a target, on a simulated clock."""

from functools import partial

import networkx as nx
import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

from dfl_lightning import DFLModule, DFLTrainer, data
from dfl_lightning.models import Network
from dfl_lightning.tasks import Regression


class Scalar(Network):
    """A model of one number, 0 at first: a gradient step of 1/4 on (w - y)^2 takes it half of the way to y."""

    def build(self, shape, outputs):
        self.line = nn.Linear(1, 1, bias=False)
        nn.init.zeros_(self.line.weight)
        return self

    def forward(self, x):
        return self.line(x)


def scalars(targets):
    """Make clients of one training sample, (1, target)."""
    targets = torch.tensor(targets, dtype=torch.float64).unsqueeze(1)
    pairs = TensorDataset(torch.ones_like(targets), targets)
    return data.FromDataset(pairs, parts=[[i] for i in range(len(targets))], test_fraction=0.0, val_fraction=0.0)


def fit(clock, folder, *, datamodule, graph, network, rounds, also=(), task=None, epochs=1, ckpt_path=None, **trainer):
    """Fit in float64 and return trainer and module."""
    trainer = {"enable_checkpointing": False, **trainer}
    trainer = DFLTrainer(
        max_rounds=rounds,
        topology=graph,
        callbacks=[*([clock] if clock else []), *also],
        accelerator="cpu",
        precision="64-true",
        enable_progress_bar=False,
        default_root_dir=folder,
        **trainer,
    )
    lr = 0.25 if isinstance(network, Scalar) else 0.1
    options = {} if task is None else {"task": task}
    module = DFLModule(network, local_epochs=epochs, batch_size=8, optimizer=partial(torch.optim.SGD, lr=lr), **options)
    trainer.fit(module, datamodule=datamodule, ckpt_path=ckpt_path)
    return trainer, module


def fit_scalars(clock, folder, targets, graph, rounds, also, **trainer):
    """Fit a scalar for each target and return trainer and module."""
    return fit(
        clock,
        folder,
        datamodule=scalars(targets),
        graph=graph,
        network=Scalar(),
        rounds=rounds,
        also=also,
        task=Regression(),
        **trainer,
    )


def world(number):
    """Draw a graph, targets and speeds; the durations are whole nanoseconds, some of them equal."""
    draw = np.random.default_rng(number)
    m = int(draw.integers(2, 12))
    graph = nx.gnp_random_graph(m, 0.5, seed=number)
    targets = draw.integers(-8, 9, m)
    cost = draw.choice([1_000_000_000, 1_500_000_000, 2_000_000_000, 3_700_000_000], m)
    latency = float(draw.choice([0, 0.25, 2.0]))
    return m, graph, targets, cost, latency
