"""Optimizers that a user has made `capturable`, which torch takes on GPUs only."""

import functools
import itertools

import pytest
import torch
from pretended import DEVICE, everything_on

from dfl_lightning.engines.optimizing.optimizers import ClientOptimizer

pytestmark = pytest.mark.cpu_bits  # one side of the comparison is the CPU


class Own(torch.optim.Adam):
    """A user's subclass, which only its own factory makes."""


REMARK = "model.optimizer {}: capturable=True is for GPUs, and is ignored on a CPU"


def fit(small_run, kind, engine, **options):
    optimizer = functools.partial(kind, lr=0.01, **options)
    return small_run(rounds=2, precision="64-true", engine=engine, module={"optimizer": optimizer}).fit()


QUICK = [(torch.optim.Adam, "stacked"), (torch.optim.Adam, "loop"), (Own, "stacked")]
KINDS = [torch.optim.Adam, torch.optim.RMSprop, torch.optim.ASGD, Own]


@pytest.mark.parametrize(
    ("kind", "engine"),
    [
        pytest.param(*way, marks=[] if way in QUICK else pytest.mark.slow)
        for way in itertools.product(KINDS, ("stacked", "loop"))
    ],
)
def test_capturable_does_not_change_the_numbers_on_any_device(small_run, kind, engine):
    plain = fit(small_run, kind, engine)
    here = fit(small_run, kind, engine, capturable=True)
    with everything_on(DEVICE):
        there = fit(small_run, kind, engine, capturable=True)
    torch.testing.assert_close(here.rows, plain.rows, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(there.rows, plain.rows, rtol=0, atol=2e-6)  # torch then counts steps in float32
    assert [REMARK.format(kind.__name__) in run.trainer.remarks for run in (plain, here, there)] == [False, True, False]


@pytest.mark.parametrize("kind", [torch.optim.Adam, Own])
def test_capturable_is_set_on_a_gpu_only(kind):
    network = torch.nn.Linear(2, 2)
    optimizer = ClientOptimizer(functools.partial(kind, capturable=True), network)
    for device, expected in (("cpu", False), ("cuda", True)):
        placed = optimizer.on(torch.device(device))
        made = placed.make(list(network.parameters()), [0, 1], placed.hyperparameters)
        assert made.param_groups[0]["capturable"] is expected
