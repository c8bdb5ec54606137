"""One round of every network, against the same round written out with plain modules."""

from __future__ import annotations

import copy
import functools

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from dfl_lightning import DFLModule, DFLTrainer, data
from dfl_lightning import callbacks as cb
from dfl_lightning.models import CNN4, FEMNISTCNN, MLP, MNISTCNN, PENSCNN, LeNet, Network, ResNet18, resnet

CLIENTS, SAMPLES, CLASSES, SEED = 2, 8, 3, 4
SGD = functools.partial(torch.optim.SGD, lr=0.1)
NARROW = ((64, 1), (64, 2), (64, 2), (64, 2))  # ResNet-18's wiring with a twentieth of its parameters, for speed
CASES = [
    (MLP, {"hidden": [5, 4]}, (1, 4, 4)),
    (LeNet, {}, (3, 16, 16)),
    (MNISTCNN, {"dropout": 0.0}, (1, 16, 16)),
    (CNN4, {}, (1, 4, 4)),
    (PENSCNN, {}, (3, 22, 22)),
    (FEMNISTCNN, {}, (1, 16, 16)),
    # on smaller images a norm sees two numbers, and rounding grows a billion times
    pytest.param(ResNet18, {}, (3, 16, 16), marks=pytest.mark.slow),
    (ResNet18, {"norm": "batch"}, (3, 16, 16)),
]


def samples(shape: tuple[int, ...], seed: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(CLIENTS * SAMPLES) % CLASSES
    return TensorDataset(torch.rand(len(labels), *shape, generator=generator, dtype=torch.float32), labels)


def mean_of_trained(network: nn.Module, dataset: TensorDataset) -> dict[str, torch.Tensor]:
    """Everybody takes a step on all its own samples, then all models are averaged."""
    states = []
    for client in range(CLIENTS):
        mine = copy.deepcopy(network).double().train()
        images, labels = dataset[client * SAMPLES : (client + 1) * SAMPLES]
        nn.functional.cross_entropy(mine(images.double()), labels).backward()
        SGD(mine.parameters()).step()
        states.append(mine.state_dict())
    return {name: torch.stack([state[name].double() for state in states]).mean(0) for name in states[0]}


@pytest.mark.parametrize(("network", "options", "shape"), CASES)
def test_one_round_of_averaging_is_the_mean_of_plainly_trained_networks(
    network: type[Network], options: dict, shape: tuple[int, ...], tmp_path, monkeypatch
):
    monkeypatch.setenv("PL_GLOBAL_SEED", str(SEED))
    monkeypatch.setattr(resnet, "_STAGES", NARROW)
    dataset = samples(shape, seed=1)
    parts = [list(range(client * SAMPLES, (client + 1) * SAMPLES)) for client in range(CLIENTS)]
    trainer = DFLTrainer(
        max_rounds=1,
        callbacks=[cb.Gossip(k="all"), cb.Uniform()],
        accelerator="cpu",
        precision="64-true",
        enable_progress_bar=False,
        enable_checkpointing=False,
        default_root_dir=tmp_path,
    )
    module = DFLModule(network(**options), optimizer=SGD, local_epochs=1, batch_size=SAMPLES)
    trainer.fit(module, datamodule=data.FromDataset(dataset, samples(shape, seed=2), parts))

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        start = network(**options, input_shape=shape, num_classes=CLASSES)
    expected = mean_of_trained(start, dataset)
    mean = module.layout.row(expected, torch.float64)
    for row in module.bank.boundary.rows["models"]:
        torch.testing.assert_close(row, mean, atol=1e-9, rtol=1e-9)
    moved = (not torch.equal(expected[name], value.double()) for name, value in start.state_dict().items())
    assert all(moved)
    assert trainer.run.clients["test_acc"].shape == (1, CLIENTS)
