"""Group norms in the layout of their input: torch's own group norm of each client by itself, float64, 1e-10."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from dfl_lightning.engines.stacked.layers import rules as layers
from dfl_lightning.engines.stacked.layers.group_norm import group_norm_in_layout

SHAPES = {"images": (6, 5, 4), "one position": (6, 1, 1), "one row": (6, 1, 7)}
GROUPS = {"some": 3, "each channel": 6, "all channels": 1}


def numbers(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def images(batch, clients, shape, last=True):
    """[B, k * C, H, W] around 3, whose gradients are wanted."""
    layout = torch.channels_last if last else torch.contiguous_format
    return (numbers(batch, clients * shape[0], *shape[1:]) + 3).contiguous(memory_format=layout).requires_grad_()


@pytest.mark.parametrize("affine", ["weight and bias", "weight", "bias", "neither"])
@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize("shape", SHAPES)
def test_outputs_and_gradients_are_those_of_each_client_by_itself(shape, groups, affine):
    batch, clients, groups, shape = 4, 3, GROUPS[groups], SHAPES[shape]
    channels = shape[0]
    x = images(batch, clients, shape)
    weight = numbers(clients, channels, seed=1).requires_grad_() if "weight" in affine else None
    bias = numbers(clients, channels, seed=2).requires_grad_() if "bias" in affine else None
    leaves = [leaf for leaf in (x, weight, bias) if leaf is not None]
    flat = [None if leaf is None else leaf.flatten() for leaf in (weight, bias)]
    found = group_norm_in_layout(x, clients * groups, *flat, 0.1, x.dtype)
    expected = torch.cat(
        [
            F.group_norm(own, groups, *(None if leaf is None else leaf[client] for leaf in (weight, bias)), 0.1)
            for client, own in enumerate(x.chunk(clients, dim=1))
        ],
        dim=1,
    )
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    upstream = numbers(*found.shape, seed=3)
    mine, theirs = (torch.autograd.grad(out, leaves, upstream) for out in (found, expected))
    for gradient, its in zip(mine, theirs, strict=True):
        torch.testing.assert_close(gradient, its, rtol=1e-10, atol=1e-10)
    assert all(tensor.is_contiguous(memory_format=torch.channels_last) for tensor in (found, mine[0]))


@pytest.mark.parametrize("last", [True, False], ids=["channels last", "channels first"])
def test_a_gradient_in_another_layout_than_the_input(last):
    x, weight, bias = images(4, 2, SHAPES["images"], last), *(numbers(12, seed=n).requires_grad_() for n in (1, 2))
    upstream = images(4, 2, SHAPES["images"], not last).detach()
    assert upstream.stride() != x.stride()
    outputs = group_norm_in_layout(x, 6, weight, bias, 1e-5, x.dtype), F.group_norm(x, 6, weight, bias, 1e-5)
    mine, its = (torch.autograd.grad(out, (x, weight, bias), upstream) for out in outputs)
    torch.testing.assert_close(mine, its, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("wanted", ["x", "weight", "bias"])
def test_gradients_of_one_argument_are_correct(wanted):
    names = {"x": images(3, 2, SHAPES["images"]), "weight": numbers(12, seed=1), "bias": numbers(12, seed=2)}
    names = {name: tensor.detach().requires_grad_(name == wanted) for name, tensor in names.items()}
    x, weight, bias = names.values()
    outputs = group_norm_in_layout(x, 4, weight, bias, 1e-5, x.dtype), F.group_norm(x, 4, weight, bias, 1e-5)
    mine, its = (torch.autograd.grad((out * out).sum(), names[wanted])[0] for out in outputs)
    torch.testing.assert_close(mine, its, rtol=1e-10, atol=1e-10)


def test_the_output_is_writable_and_second_derivatives_are_refused():
    x = images(3, 2, SHAPES["images"])
    out = group_norm_in_layout(x, 4, None, None, 1e-5, x.dtype)
    expected = torch.relu(F.group_norm(x, 4))
    mine, its = (torch.autograd.grad((y * y).sum(), x)[0] for y in (torch.relu_(out), expected))
    torch.testing.assert_close(mine, its, rtol=1e-10, atol=1e-10)
    out = group_norm_in_layout(x, 4, None, None, 1e-5, x.dtype)
    (first,) = torch.autograd.grad((out * out).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.square().sum().backward()


@pytest.mark.parametrize("out", [torch.float32, torch.bfloat16])
def test_statistics_of_bfloat16_are_float32(out):
    """As in torch's own kernels: against float64 on the same rounded numbers."""
    x = images(4, 2, (6, 16, 16)).detach() + 20
    x = x.bfloat16().requires_grad_()
    exact = x.detach().double().requires_grad_()
    weight, bias = (numbers(12, seed=n).float().requires_grad_() for n in (1, 2))
    found = group_norm_in_layout(x, 4, weight, bias, 1e-5, out)
    expected = F.group_norm(exact, 4, weight.double(), bias.double())
    assert found.dtype == out
    assert found.is_contiguous(memory_format=torch.channels_last)
    tolerance = 1e-5 if out == torch.float32 else 1e-2
    torch.testing.assert_close(found.double(), expected, rtol=tolerance, atol=tolerance)
    upstream = numbers(*found.shape, seed=3).to(out)
    mine = torch.autograd.grad(found, (x, weight, bias), upstream)
    theirs = torch.autograd.grad(expected, (exact, weight, bias), upstream.double())
    assert [gradient.dtype for gradient in mine] == [torch.bfloat16, torch.float32, torch.float32]
    torch.testing.assert_close(mine[0].double(), theirs[0], rtol=1e-2, atol=1e-3)
    torch.testing.assert_close(mine[1:], theirs[1:], rtol=1e-3, atol=1e-3)


def test_a_large_mean_leaves_the_variance_exact():
    x = (images(2, 1, SHAPES["images"]).detach() + 1000).float()
    found = group_norm_in_layout(x, 2, None, None, 1e-5, x.dtype)
    torch.testing.assert_close(found.double(), F.group_norm(x.double(), 2), rtol=1e-3, atol=1e-3)


# --- as a layer of k clients, chosen as off the CPU -------------------------------------------------------------------
class Twice(nn.Module):
    """One norm in two places, in the branch of a residual block."""

    def __init__(self, norm):
        super().__init__()
        self.first, self.norm, self.second = nn.Conv2d(4, 4, 3, padding=1), norm, nn.Conv2d(4, 4, 1)

    def forward(self, x):
        return self.second(torch.relu(self.norm(torch.tanh(self.norm(self.first(x)))))) + x


NETWORKS = {
    "groups": lambda: nn.Sequential(nn.GroupNorm(2, 4)),
    "not affine": lambda: nn.Sequential(nn.GroupNorm(2, 4, affine=False)),
    "one group": lambda: nn.Sequential(nn.GroupNorm(1, 4, eps=0.1)),
    "a group for each channel": lambda: nn.Sequential(nn.GroupNorm(4, 4)),
    "instances": lambda: nn.Sequential(nn.InstanceNorm2d(4)),
    "affine instances": lambda: nn.Sequential(nn.InstanceNorm2d(4, affine=True, eps=0.1)),
    "twice": lambda: Twice(nn.GroupNorm(2, 4)),
    "instances twice": lambda: Twice(nn.InstanceNorm2d(4, affine=True)),
    "before a relu in place": lambda: nn.Sequential(nn.Conv2d(4, 4, 2), nn.GroupNorm(2, 4), nn.ReLU(inplace=True)),
}


@pytest.fixture
def in_layout(monkeypatch):
    """Images are treated as off the CPU; counts them."""
    seen = []

    def keeps(x):
        seen.append(tuple(x.shape))
        return x.dim() == 4

    monkeypatch.setattr(layers, "keeps_layout", keeps)
    return seen


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("sizes", [None, [5, 1, 3]], ids=["equal", "padded"])
@pytest.mark.parametrize("name", NETWORKS)
def test_three_clients_are_three_plain_networks(compare, in_layout, name, sizes, training):
    torch.manual_seed(0)
    inputs = numbers(3, 5, 4, 7, 6, seed=4)
    compare(NETWORKS[name](), inputs, training, sizes)
    assert set(in_layout) & {(5, 12, 7, 6), (5, 12, 6, 5)}


def test_single_values_are_refused_with_torchs_message(compare, in_layout):
    for layer, shape, words in (
        (nn.GroupNorm(4, 4), (3, 1, 4, 1, 1), "Expected more than 1 value per channel when training, got input size"),
        (nn.InstanceNorm2d(4), (3, 5, 4, 1, 1), "Expected more than 1 spatial element when training, got input size"),
    ):
        with pytest.raises(ValueError, match=words):
            layer(torch.zeros(shape[1:]))
        with pytest.raises(ValueError, match=words):
            compare(nn.Sequential(layer), torch.zeros(shape))
    compare(nn.Sequential(nn.GroupNorm(4, 4)), numbers(3, 2, 4, 1, 1))  # torch's own lets the bias through
    assert in_layout
