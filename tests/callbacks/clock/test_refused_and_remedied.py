"""Refusals of an asynchronous clock, and the same run with the remedy of each sentence."""

import networkx as nx
import pytest
import torch
from scalar_clients import Scalar
from torch import nn
from torch.utils.data import TensorDataset

from dfl_lightning import DFLModule, DFLTrainer, UserError, data
from dfl_lightning import callbacks as cb
from dfl_lightning.tasks import Regression

HEAD = "client,speed,up,down,latency\n"


def run(folder, clock, *, policies=None, parts=None, graph=None, **model):
    """Fit three clients of one number for three rounds; `parts` are their samples, `model` options of the module."""
    policies = [cb.Gossip(k="all"), cb.Uniform()] if policies is None else policies
    pairs = TensorDataset(torch.ones(3, 1, dtype=torch.float64), torch.tensor([[1.0], [2.0], [3.0]]).double())
    parts = [[0], [1], [2]] if parts is None else parts
    trainer = DFLTrainer(
        max_rounds=3,
        topology=nx.complete_graph(3) if graph is None else graph,
        callbacks=[*([clock] if clock else []), *policies],
        accelerator="cpu",
        precision="64-true",
        enable_progress_bar=False,
        enable_checkpointing=False,
        default_root_dir=folder,
    )
    network = model.pop("network", None) or Scalar()
    module = DFLModule(network, **{"local_epochs": 1, "batch_size": 8, **model}, task=Regression())
    trainer.fit(module, datamodule=data.FromDataset(pairs, parts=parts, test_fraction=0.0, val_fraction=0.0))
    return module.bank.boundary.round


def speed(number=1.0, **more):
    return lambda: cb.Asynchronous(speed=number, **more)


PAIRS = [cb.Gossip(k=1), cb.Pairwise()]
EMPTY = {"parts": [[0, 1], [], [2]]}
TWO = {"parts": [[0, 1], [2]], "graph": nx.complete_graph(2)}
IDLE = {"per_client": {"local_epochs": [1, 0, 1]}}
NORMALISED = nn.Sequential(nn.Linear(1, 2), nn.BatchNorm1d(2), nn.Linear(2, 1))
CASES = {
    "no speed": (speed(0.0), {}, "speed=0; .* more than 0", speed(0.5), {}),
    "negative speed": (speed([1.0, -1.0, 1.0]), {}, "speed=-1", speed([1.0, 0.1, 1.0]), {}),
    "no samples": (speed(), EMPTY, "client 1 has no training sample .*; lower num_clients", speed(), TWO),
    "no epochs": (speed(), IDLE, "client 1 does not train .*; give it 1 epoch", speed(), {}),
    "growing batches": (speed(), {"batch_growth": 1}, "leave out model.batch_growth", speed(), {}),
    "below a nanosecond": (speed(every=1e-10), {}, "at least a nanosecond", speed(1e9, every=1e-9), {}),
    "too long": (speed(every=2e9), {}, "at most 36 years", speed(1e-3, every=1e3), {}),
    "more than trainings": (speed(1e6, every=1.0), {}, "lower clock.every", speed(1e6, every=2e-6), {}),
    "longer than counted": (speed(1e-6, every=1.15e9), {}, "lower trainer.max_rounds or", speed(1e-6, every=1e6), {}),
    "two clocks": (
        *(speed(), {"policies": [cb.Gossip(k="all"), cb.Uniform(), cb.SimulatedTime(1.0, 1.0, 1.0)]}),
        *("is a second clock.*; leave the monitor out", speed(), {}),
    ),
    "no support": (
        *(speed(), {"policies": [cb.Gossip(k=1), cb.PushSum()]}, "PushSum does not support"),
        *(lambda: None, {"policies": [cb.Gossip(k=1), cb.PushSum()]}),
    ),
    "batch normalisation": (
        *(speed(), {"policies": PAIRS, "network": NORMALISED}, "use a network without batch normalisation"),
        *(speed(), {"policies": PAIRS}),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_refused_works_with_the_remedy(name, tmp_path):
    refused, bad, sentence, remedied, good = CASES[name]
    with pytest.raises(UserError, match=sentence):
        run(tmp_path / "refused", refused(), **bad)
    assert run(tmp_path / "remedied", remedied(), **good) == 3


def test_a_trace_needs_a_line_for_each_client(tmp_path):
    trace = tmp_path / "devices.csv"
    trace.write_text(f"{HEAD}0,1,1e6,1e6,0\n2,1,1e6,1e6,0\n")
    with pytest.raises(UserError, match=r"has no line for client 1, but data has 3 clients; give one line for each"):
        run(tmp_path / "refused", cb.Asynchronous(trace=str(trace)))
    trace.write_text(f"{trace.read_text()}1,1,1e6,1e6,0\n")
    assert run(tmp_path / "remedied", cb.Asynchronous(trace=str(trace))) == 3
