"""Whole rounds on a handful of numbers for the tests of policies."""

import functools

import pytest
import torch
from tester.rounds import Run, clustered, through_a_file, toy_data

from dfl_lightning.models import MLP


@pytest.fixture(autouse=True)
def seed_zero(monkeypatch):
    monkeypatch.setenv("PL_GLOBAL_SEED", "0")


@pytest.fixture
def start():
    """Set up a run: policies, then clients, topology, data and options of the model."""

    def _start(*policies, clients=6, rounds=50, topology="complete", data=None, lr=0.2, trainer=None, **model):
        defaults = {
            "network": MLP(hidden=[4]),
            "local_epochs": 1,
            "batch_size": 3,
            "optimizer": functools.partial(torch.optim.SGD, lr=lr),
        }
        data = toy_data(clients) if data is None else data
        return Run(policies, clients, rounds, topology, data, {**defaults, **model}, trainer or {})

    return _start


@pytest.fixture
def make_data():
    return toy_data


@pytest.fixture
def make_clusters():
    return clustered


@pytest.fixture(name="through_a_file")
def _through_a_file():
    return through_a_file


@pytest.fixture
def go_on(start):
    """Make a fresh run with the state of another one, which it reads from a file."""

    def _go_on(former, *policies, **settings):
        return start(*policies, clients=former.clients, **settings).take_up(through_a_file(former.state()))

    return _go_on
