"""bfloat16 under autocast: products in it, forth and back, and results of the types that plain layers have."""

import copy
import functools

import pytest
import torch
from threads import Watching
from torch import nn

from dfl_lightning.bank.references import References
from dfl_lightning.engines.loop.loop_engine import LoopEngine
from dfl_lightning.engines.stacked import CannotStack, StackedEngine
from dfl_lightning.engines.stacked.layers.passes import Pass
from dfl_lightning.engines.stacked.networks.traced import StackedNetwork

PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::convolution", "aten::convolution_backward")


class Types(Watching):
    """Record of the types of the operands of products."""

    def __init__(self):
        super().__init__()
        self.products = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func._schema.name in PRODUCTS:
            self.products += [arg.dtype for arg in args if isinstance(arg, torch.Tensor)]
        return func(*args, **(kwargs or {}))


def image(*layers):
    return nn.Sequential(nn.Conv2d(2, 4, 3), *layers), (2, 8, 8)


NETWORKS = {
    "linear": (nn.Sequential(nn.Linear(6, 5)), (6,)),
    "linear without bias": (nn.Sequential(nn.Linear(6, 5, bias=False)), (6,)),
    "linear of lines": (nn.Sequential(nn.Linear(6, 5)), (3, 6)),
    "perceptron": (nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3)), (6,)),
    "convolution": image(),
    "convolutions": image(nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 4, 2), nn.Flatten(), nn.Linear(16, 3)),
    "batch norm": image(nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 1)),
    "group norm": image(nn.GroupNorm(2, 4), nn.ReLU(), nn.Conv2d(4, 2, 1)),
    "layer norm": (nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 3), nn.LayerNorm(3)), (6,)),
}


def reduced():
    return torch.autocast("cpu", torch.bfloat16)


@pytest.mark.parametrize("unfold", [False, True], ids=["groups", "patches"])
@pytest.mark.parametrize("name", NETWORKS)
def test_bfloat16_products_give_the_types_of_plain_layers(name, unfold):
    network, shape = NETWORKS[name]
    torch.manual_seed(0)
    clients = [copy.deepcopy(network) for _ in range(3)]
    for client in clients:
        for layer in client:
            if hasattr(layer, "reset_parameters"):
                layer.reset_parameters()
    inputs = torch.randn(3, 6, *shape)
    stacked = StackedNetwork(network)
    stacked.unfolded = frozenset(stacked.can_be_unfolded() * unfold)
    names = [own for own, _ in network.named_parameters()]
    leaves = [
        torch.stack([dict(c.named_parameters())[own].detach() for c in clients]).requires_grad_() for own in names
    ]
    buffers = {own: torch.stack([dict(c.named_buffers())[own] for c in clients]) for own, _ in network.named_buffers()}
    with Types() as forward, reduced():
        found = stacked(Pass(dict(zip(names, leaves, strict=True)) | buffers, True), inputs)
    weights = torch.randn(found.shape)
    with Types() as backward:
        grads = torch.autograd.grad((found * weights).sum(), leaves)
    assert set(forward.products) == set(backward.products) == {torch.bfloat16}
    for number, client in enumerate(clients):
        with reduced():
            expected = client(inputs[number])
        assert found.dtype == expected.dtype
        torch.testing.assert_close(found[number], expected, rtol=0.05, atol=0.05)
        theirs = torch.autograd.grad((expected * weights[number]).sum(), list(client.parameters()))
        for mine, its in zip(grads, theirs, strict=True):
            assert mine.dtype == its.dtype == torch.float32
            scale = float(its.abs().max()) + 0.1
            torch.testing.assert_close(mine[number], its, rtol=0.05, atol=0.05 * scale)


@pytest.mark.parametrize("bias", [True, False])
def test_scores_in_bfloat16_have_losses_in_float32(federation, bias):
    """And training gives, up to the rounding of bfloat16, what one client after the other gives."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3, bias=bias))
    found = {}
    for engine in (StackedEngine, LoopEngine):
        f = federation(engine=engine, network=network, dtype=torch.float32, reduced=torch.bfloat16)
        with Types() as types:
            trained = f.engine.train(References.rows("models", torch.arange(f.m)), f.training(lr=0.1))
        assert set(types.products) == {torch.bfloat16}
        found[engine] = [f.bank.rows("trained").clone(), trained.losses]
    for ours, its in zip(found[StackedEngine], found[LoopEngine], strict=True):
        assert ours.dtype == its.dtype
        torch.testing.assert_close(ours, its, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("engine", [StackedEngine, LoopEngine])
def test_a_users_loss_receives_scores_in_float32(federation, engine):
    """Within torch.vmap a cross-entropy of bfloat16 would be one of three digits."""
    seen = []

    def smoothed(scores, labels):
        seen.append(scores.dtype)
        return nn.functional.cross_entropy(scores, labels, label_smoothing=0.1)

    f = federation(engine=engine, dtype=torch.float32, reduced=torch.bfloat16, loss=smoothed)
    seen.clear()
    f.engine.train(References.rows("models", torch.arange(f.m)), f.training())
    assert set(seen) == {torch.float32}


def test_vmap_failures_in_bfloat16_select_the_loop_engine(federation):
    network = nn.Sequential(nn.Linear(6, 5), nn.PReLU(), nn.Linear(5, 3))
    federation = functools.partial(federation, engine=StackedEngine, network=network, dtype=torch.float32)
    federation()
    with pytest.raises(CannotStack, match=r"layer '1' \(PReLU\) fails for several clients at once"):
        federation(reduced=torch.bfloat16)


@pytest.fixture
def federation(federation):
    """Plain SGD."""
    return functools.partial(federation, optimizer=functools.partial(torch.optim.SGD, lr=77.0))


@pytest.fixture
def engine():
    """Given where a federation is made."""
