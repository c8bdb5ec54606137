"""The stacked engine on a GPU that is not there: torch's fake tensors know the device and refuse to mix two."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from dfl_lightning.bank import Layout
from dfl_lightning.bank.stacked import network as stacked_network
from dfl_lightning.bank.stacked.layers import Pass
from dfl_lightning.bank.stacked.loss import StackedLoss
from dfl_lightning.bank.stacked.network import StackedNetwork
from dfl_lightning.bank.stacked.staging import Staging


@pytest.fixture
def gpu(monkeypatch):
    """Everything made inside is fake, on whatever device it says; backward passes would ask for a real one."""
    monkeypatch.setattr(torch.autograd, "grad", lambda loss, leaves, **_: [torch.zeros_like(leaf) for leaf in leaves])
    with FakeTensorMode():
        yield torch.device("cuda", 0)


def small_network(device="cpu"):
    last = nn.Linear(16, 3, device=device)
    return nn.Sequential(nn.Conv2d(1, 4, 3, device=device), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), last)


def test_the_fake_gpu_refuses_a_tensor_of_the_cpu(gpu):
    with pytest.raises(RuntimeError, match="device"):
        torch.ones(3, device=gpu) + torch.ones(3)


def test_trained_models_are_written_into_rows_on_a_gpu(gpu):
    layout = Layout(small_network())
    rows = torch.zeros(5, layout.width, device=gpu)
    Staging(layout, lambda start, stop: rows[:2, start:stop].clone()).copy_into(
        rows, torch.tensor([4, 1])
    )  # who they belong to is known on the CPU
    assert rows.device == gpu


def test_a_network_is_tried_out_on_a_gpu(gpu, monkeypatch):
    monkeypatch.setattr(stacked_network, "copy", SimpleNamespace(deepcopy=lambda module: module))  # fake ones cannot be
    plain = stacked_network._moved(small_network(gpu))
    outputs, weights, gradients, _ = stacked_network._plain_pass(
        plain, torch.ones(3, 1, 6, 6, device=gpu), True, torch.Generator()
    )
    assert {t.device for t in (outputs, weights, *gradients.values())} == {gpu}


def test_a_forward_pass_of_two_clients_on_a_gpu(gpu):
    network = small_network()
    layout = Layout(network)
    staging = Staging(layout, lambda start, stop: torch.ones(2, stop - start, device=gpu))
    scores = StackedNetwork(network)(Pass(staging.tensors, True), torch.ones(2, 5, 1, 6, 6, device=gpu))
    losses = StackedLoss(nn.CrossEntropyLoss())(
        scores, torch.zeros(2, 5, dtype=torch.long, device=gpu), [5, 4], torch.ones(2, 5, device=gpu)
    )
    assert {scores.device, losses.device} == {gpu}
    assert staging.finite().device == gpu
