"""Comparison of one stacked network with k plain modules."""

import copy
from types import SimpleNamespace

import pytest
import torch

from dfl_lightning.engines.dropout_layers import StreamDropout, mask_key, replace_dropout_layers
from dfl_lightning.engines.stacked import StackedEngine
from dfl_lightning.engines.stacked import engine as stacked_engine
from dfl_lightning.engines.stacked.layers.passes import Pass
from dfl_lightning.engines.stacked.networks.traced import StackedNetwork

CLIENTS = 3


def _clients(network, count=CLIENTS):
    """Different plain modules of one kind, in float64; variances stay positive, integers as they are."""
    generator = torch.Generator().manual_seed(11)
    clients = []
    for number in range(count):
        client = copy.deepcopy(network).double()
        for name, tensor in [*client.named_parameters(), *client.named_buffers()]:
            if tensor.is_floating_point():
                tensor.data += (0.2 + 0.3 * torch.rand(tensor.shape, generator=generator, dtype=torch.float64)) * (
                    1 if "var" in name else (-1) ** number
                )
        clients.append(client)
    return clients


def _state(module):
    return [*module.named_parameters(), *module.named_buffers()]


def _stacked_state(clients, device="cpu"):
    """By name, [k, *shape]; parameters are leaves that want a gradient."""
    states = [dict(_state(client)) for client in clients]
    stacked = {name: torch.stack([state[name].detach() for state in states]).to(device) for name in states[0]}
    return {name: tensor.requires_grad_(states[0][name].requires_grad) for name, tensor in stacked.items()}


def _plain(client, inputs, training, seed):
    """Outputs of one client's module, its masks' key set."""
    client.train(training)
    for module in client.modules():
        if isinstance(module, StreamDropout):
            module.source.begin(mask_key(seed))
    return client(inputs)


def _stacked(network):
    """The stacked form of a copy of a plain network, in float64; dropout layers are replaced."""
    network = copy.deepcopy(network).double()
    replace_dropout_layers(network)
    return StackedNetwork(network)


def _compare(network, inputs, training=True, sizes=None, mask=False, unfold=(), device="cpu", tolerance=1e-10):
    """Stack clients of a plain network and assert what plain modules do: the stacked network.

    Args:
        network: a plain module; or its stacked form, which several comparisons may share.
        inputs: [k, B, ...], of each client.
        training: the mode.
        sizes: how many of the B samples of each client are real; None: all, without padding.
        mask: whether batch norms get these sizes.
        unfold: the convolutions that are computed by patches.
        device: where the stacked network computes; the plain modules do on the CPU.
        tolerance: of all comparisons.
    """
    stacked = network if isinstance(network, StackedNetwork) else _stacked(network)
    stacked.unfolded = frozenset(unfold)
    clients = _clients(stacked.network, len(inputs))
    differentiable = inputs.is_floating_point()
    if differentiable:
        inputs = inputs.double().to(device).requires_grad_()
    tensors = _stacked_state(clients, device)
    masks = torch.stack([mask_key(number) for number in range(len(inputs))])
    shares = None
    if mask:
        shares = torch.stack([(torch.arange(inputs.shape[1]) < size).double() / size for size in sizes])
    now = Pass(dict(tensors), training, masks, sizes, shares)
    outputs = stacked(now, inputs * 1)  # * 1: what in-place layers may change
    assert outputs.shape[:2] == inputs.shape[:2]

    names = [name for name, tensor in tensors.items() if tensor.requires_grad]
    leaves = [tensors[name] for name in names] + [inputs] * differentiable
    weights = torch.randn(outputs.shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    for number, size in enumerate(sizes or []):
        weights[number, size:] = 0  # padding
    found = torch.autograd.grad((outputs * weights.to(device)).sum(), leaves, allow_unused=True)
    outputs, inputs = outputs.cpu(), inputs.cpu()
    found = [None if gradient is None else gradient.cpu() for gradient in found]
    for number, client in enumerate(clients):
        size = inputs.shape[1] if sizes is None else sizes[number]
        mine = inputs[number, :size].detach().requires_grad_(differentiable)
        expected = _plain(client, mine * 1, training, number)
        torch.testing.assert_close(outputs[number, :size], expected, rtol=tolerance, atol=tolerance)
        plain_leaves = [dict(_state(client))[name] for name in names] + [mine] * differentiable
        plain = torch.autograd.grad((expected * weights[number, :size]).sum(), plain_leaves, allow_unused=True)
        for ours, theirs in zip(found, plain, strict=True):
            if theirs is None:
                assert ours is None or not ours[number].any()
            else:
                assert ours is not None
                gradient = ours[number] if ours is not found[-1] or not differentiable else ours[number, :size]
                torch.testing.assert_close(gradient, theirs, rtol=tolerance, atol=tolerance)
        for name, buffer in client.named_buffers():
            torch.testing.assert_close(tensors[name][number].detach().cpu(), buffer, rtol=tolerance, atol=tolerance)
    return stacked


@pytest.fixture
def engine():
    """Banks of this folder have the stacked engine, unless a test says otherwise."""
    return StackedEngine


@pytest.fixture
def one_cohort(monkeypatch):
    """All clients side by side, in one cohort."""
    monkeypatch.setattr(stacked_engine, "plan_cohorts", lambda steps, *_: [torch.arange(len(steps))])


@pytest.fixture
def compare():
    """Stack three clients of a network and compare outputs, gradients and buffers with three plain modules."""
    return _compare


@pytest.fixture(scope="session")
def stack():
    """The pieces of `compare`: different clients of a network, and their tensors side by side."""
    return SimpleNamespace(network=_stacked, clients=_clients, tensors=_stacked_state, plain=_plain, number=CLIENTS)
