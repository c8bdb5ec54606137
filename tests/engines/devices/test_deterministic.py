"""`trainer.deterministic`: no operation of ours is one that CUDA does in any order."""

import pytest
import torch
from pairs import compare_pairs
from pretended import DEVICE, DISORDERED

from dfl_lightning import models
from dfl_lightning.bank.references import References
from dfl_lightning.data.augment import CropFlip
from dfl_lightning.engines.stacked import StackedEngine

ONES = torch.ones(2, 3, 6, 6)
ORDERLESS = {
    "sums by weight": lambda: torch.ones(3).long().to(DEVICE).bincount(torch.ones(3).to(DEVICE)),
    "running sums": lambda: torch.ones(3).to(DEVICE).cumsum(0),
    "a histogram": lambda: torch.ones(3).to(DEVICE).histc(2),
    "padding by reflection": lambda: torch.nn.functional.pad(
        ONES.to(DEVICE).requires_grad_(), (1, 1, 1, 1), mode="reflect"
    ).sum().backward(),
}  # fmt: skip


@pytest.fixture
def engine():
    """The one for GPUs."""
    return StackedEngine


@pytest.mark.parametrize("name", ORDERLESS)
def test_the_pretended_device_refuses_nondeterministic_operations_of_cuda(ordered, name):
    torch.ones(3).long().to(DEVICE).cumsum(0)
    torch.ones(3).long().to(DEVICE).bincount()
    torch.ones(3).to(DEVICE).nanmedian()
    assert not DISORDERED
    ORDERLESS[name]()
    assert len(DISORDERED) == 1
    DISORDERED.clear()


NETWORKS = {
    "MLP": (lambda: models.MLP(hidden=[8]), (3, 16, 16)),
    "LeNet": (models.LeNet, (3, 32, 32)),
    "MNISTCNN": (models.MNISTCNN, (1, 28, 28)),
    "CNN4": (models.CNN4, (3, 32, 32)),
    "ResNet": (models.ResNet18, (3, 16, 16)),
}


@pytest.mark.parametrize("name", [*list(NETWORKS)[:-1], pytest.param("ResNet", marks=pytest.mark.slow)])
def test_shipped_networks_train_in_a_fixed_order(federation, make_data, count, ordered, name):
    make, shape = NETWORKS[name]
    network = make()
    network.build(shape, 3)
    data = make_data((3, 2), shape=shape)
    data.augment = CropFlip(padding=1)
    here = federation(engine=StackedEngine, device=DEVICE, network=network, data=data)
    all_clients = torch.arange(2)
    trained = here.engine.train(References.rows("models", all_clients), here.training(epochs=1))
    assert trained.finite.all()
    here.engine.evaluate(References.rows("trained", all_clients), "val")
    compare_pairs(here.bank, "trained", torch.ones(2, 2, dtype=torch.bool), centre=True)
    here.bank.mix([(torch.full((2, 2), 0.5), "trained")], "models", all_clients)
