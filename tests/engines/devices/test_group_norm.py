"""Norms of groups and instances on a device: the numbers of the CPU, and no activation is laid out anew."""

import pytest
import torch
from pretended import DEVICE, Count
from torch import nn

from dfl_lightning.engines.stacked.layers.activation import Activation
from dfl_lightning.engines.stacked.layers.passes import Pass
from dfl_lightning.engines.stacked.layers.rules import MODULES
from dfl_lightning.engines.stacked.networks.traced import StackedNetwork

CLIENTS, BATCH = 3, 4
CPU = torch.device("cpu")
NEW_LAYOUT = ("aten::clone", "aten::copy_", "aten::_to_copy", "aten::contiguous")
OWN_LAYOUT = ("aten::native_group_norm", "aten::native_group_norm_backward")
"""On CUDA these two take and give torch's own layout only, and copy what comes in another one."""

NORMS = {
    "groups": lambda: nn.GroupNorm(2, 4),
    "groups that are not affine": lambda: nn.GroupNorm(2, 4, affine=False),
    "one group": lambda: nn.GroupNorm(1, 4),
    "a group for each channel": lambda: nn.GroupNorm(4, 4),
    "instances": lambda: nn.InstanceNorm2d(4),
    "affine instances": lambda: nn.InstanceNorm2d(4, affine=True),
}


def network(norm):
    return nn.Sequential(nn.Conv2d(2, 4, 3), norm, nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1), nn.Flatten())


def step(norm, device, dtype=torch.float64, reduced=False):
    """Outputs of k clients, and gradients of the inputs and parameters; `reduced`: products are of bfloat16."""
    torch.manual_seed(0)
    plain = network(norm())
    stacked = StackedNetwork(plain)
    stacked.unfolded = frozenset(stacked.can_be_unfolded() * reduced)
    tensors = {
        name: torch.stack([p.detach() + 0.1 * n for n in range(CLIENTS)]).to(dtype=dtype) + 0.1
        for name, p in plain.named_parameters()
    }
    tensors = {name: tensor.to(device).requires_grad_() for name, tensor in tensors.items()}
    inputs = torch.randn(CLIENTS, BATCH, 2, 8, 8, dtype=dtype).to(device).requires_grad_()
    with Count() as count:
        with torch.autocast(device.type, torch.bfloat16, enabled=reduced):
            outputs = stacked(Pass(dict(tensors), True), inputs)
        gradients = torch.autograd.grad((outputs * outputs).sum(), [inputs, *tensors.values()])
    return [outputs.detach().cpu(), *(gradient.cpu() for gradient in gradients)], count


@pytest.mark.parametrize("name", NORMS)
def test_a_step_is_that_of_the_cpu(name):
    here, _ = step(NORMS[name], CPU)
    there, _ = step(NORMS[name], DEVICE)
    torch.testing.assert_close(there, here, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", NORMS)
def test_a_norm_neither_copies_activations_nor_waits(name):
    _, count = step(NORMS[name], DEVICE)
    _, without = step(nn.Identity, DEVICE)
    assert {key: count.launches[key] for key in NEW_LAYOUT} == {key: without.launches[key] for key in NEW_LAYOUT}
    assert not any(count.launches[key] for key in OWN_LAYOUT)
    assert not count.waits.total()


@pytest.mark.parametrize("name", ["groups", "instances"])
def test_a_cpu_keeps_torchs_own_norm(name):
    with torch.profiler.profile() as profile:
        step(NORMS[name], CPU)
    names = {event.key for event in profile.key_averages()}
    assert "aten::var_mean" not in names
    assert "aten::native_group_norm" in names or "aten::native_batch_norm" in names


def test_under_autocast_its_output_is_float32():
    reduced = torch.autocast(DEVICE.type, torch.bfloat16)
    x = torch.randn(BATCH, 4 * CLIENTS, 5, 5, generator=torch.Generator().manual_seed(0))
    for layer, expected in ((nn.GroupNorm(2, 4), torch.float32), (nn.InstanceNorm2d(4), torch.bfloat16)):
        images = Activation(x.bfloat16().to(DEVICE), CLIENTS, channels=True)
        parameters = {name: torch.stack([p.detach()] * CLIENTS).to(DEVICE) for name, p in layer.named_parameters()}
        with reduced:
            found = MODULES[type(layer)](layer, "", Pass(parameters, True), images).tensor
        assert found.dtype == expected
        plain = torch.cat([layer(own) for own in x.bfloat16().float().chunk(CLIENTS, dim=1)], dim=1)
        torch.testing.assert_close(found.float().cpu(), plain, rtol=1e-2, atol=1e-2)


def test_a_step_under_autocast_is_close_to_float32():
    exact, _ = step(NORMS["groups"], CPU, torch.float32)
    found, count = step(NORMS["groups"], DEVICE, torch.float32, reduced=True)
    assert count.products == {torch.bfloat16}
    assert not any(count.launches[key] for key in OWN_LAYOUT)
    for mine, its in zip(found, exact, strict=True):
        assert float((mine.float() - its).norm()) < 0.2 * float(its.norm())  # relus near 0 flip
