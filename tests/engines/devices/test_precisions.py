"""Shipped networks in the precisions that a run may have, against float64 on the CPU."""

import pytest
import torch

from dfl_lightning import models
from dfl_lightning.bank.references import References
from dfl_lightning.engines.loop.loop_engine import LoopEngine
from dfl_lightning.engines.stacked import StackedEngine

ENGINES = {"stacked": StackedEngine, "loop": LoopEngine}

NETWORKS = {
    "MLP": (lambda: models.MLP(hidden=[32, 16]), (1, 8, 8)),
    "LeNet": (models.LeNet, (3, 32, 32)),
    "MNISTCNN": (models.MNISTCNN, (1, 28, 28)),
    "FEMNISTCNN": (models.FEMNISTCNN, (1, 28, 28)),
    "PENSCNN": (models.PENSCNN, (3, 32, 32)),
    "CNN4": (models.CNN4, (3, 32, 32)),
    "ResNet18": (models.ResNet18, (3, 32, 32)),
}

PRECISIONS = {"float32": ({}, 1e-4), "tf32": ({"tf32": True}, 2e-2), "bf16": ({"reduced": torch.bfloat16}, 0.2)}
"""Options of the engine, and the share of a gradient's length that rounding may come to."""


@pytest.fixture
def engine():
    """Given where a federation is made."""
    return StackedEngine


def judged(federation, make_data, name, engine, device, dtype, **options):
    """Losses of two clients, and the gradients of their mean losses."""
    make, shape = NETWORKS[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = make()
        network.build(shape, 3)
    data = make_data((6, 4), shape=shape)
    f = federation(network=network, data=data, dtype=dtype, engine=ENGINES[engine], device=device, **options)
    own = References.rows("models", torch.arange(2))
    gradients = f.engine.gradients(own, f.training(epochs=1))
    columns = f.layout.shared_parameters.mask(f.layout.width, "cpu")
    return f.engine.evaluate(own, "test").losses, gradients.cpu().double()[:, columns]


def compare(federation, make_data, name, engine, device, precision):
    options, tolerance = PRECISIONS[precision]
    losses, gradients = judged(federation, make_data, name, engine, device, torch.float32, **options)
    exact_losses, exact = judged(federation, make_data, name, "loop", "cpu", torch.float64)
    torch.testing.assert_close(losses, exact_losses, rtol=tolerance, atol=tolerance / 10)
    apart = (gradients - exact).norm(dim=1) / exact.norm(dim=1)
    assert float(apart.max()) < tolerance


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("name", ["MLP", "LeNet"])
def test_shipped_networks_agree_with_float64_on_the_cpu(federation, make_data, name, precision, engine):
    compare(federation, make_data, name, engine, "cpu", precision)


@pytest.mark.gpu
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", NETWORKS)
def test_shipped_networks_agree_with_float64_on_a_gpu(federation, make_data, name, precision, engine):
    compare(federation, make_data, name, engine, "cuda", precision)
