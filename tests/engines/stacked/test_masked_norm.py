"""Batch norms that leave padding out of their statistics: plain layers on the real samples, float64, 1e-10."""

import functools

import pytest
import torch
import torch.nn.functional as F
from networks import Forward
from torch import nn

from dfl_lightning.bank.references import References
from dfl_lightning.engines.stacked import StackedEngine
from dfl_lightning.engines.stacked.layers.masked_norm import masked_batch_norm
from dfl_lightning.engines.stacked.networks.traced import StackedNetwork

LINE, IMAGE, SOLID = (4, 9), (4, 7, 6), (4, 5, 4, 3)
SIZES = [5, 2, 3]


def residual(x, first, norm, second):
    return second(norm(norm(first(x)))) + x


def deep():
    block = [nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.3), nn.MaxPool2d(2)]
    return nn.Sequential(*block, nn.Conv2d(4, 5, 2), nn.BatchNorm2d(5, affine=False), nn.ReLU(inplace=True))


NETWORKS = {
    "1d": (lambda: nn.BatchNorm1d(6), (6,)),
    "1d of lines": (lambda: nn.BatchNorm1d(4, momentum=0.3, eps=0.1), LINE),
    "2d": (lambda: nn.BatchNorm2d(4), IMAGE),
    "3d": (lambda: nn.BatchNorm3d(4), SOLID),
    "averages of all batches": (lambda: nn.BatchNorm2d(4, momentum=None), IMAGE),
    "averages of all batches, 1d": (lambda: nn.BatchNorm1d(6, momentum=None, affine=False), (6,)),
    "no momentum": (lambda: nn.BatchNorm2d(4, momentum=0.0), IMAGE),
    "not affine": (lambda: nn.BatchNorm2d(4, affine=False), IMAGE),
    "not tracked": (lambda: nn.BatchNorm2d(4, track_running_stats=False), IMAGE),
    "not tracked, no momentum": (lambda: nn.BatchNorm1d(6, momentum=None, track_running_stats=False), (6,)),
    "twice": (lambda: Forward(residual, nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4), nn.Tanh()), IMAGE),
    "a perceptron": (lambda: nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3)), (6,)),
    "a deep one": (deep, IMAGE),
}


@pytest.fixture
def averages_allowed(monkeypatch):
    """As off the CPU, where networks whose norms average over all batches are stacked."""
    monkeypatch.setattr("dfl_lightning.engines.stacked.networks.traced.obstacle", lambda layer: None)


@pytest.mark.usefixtures("averages_allowed")
@pytest.mark.parametrize("sizes", [SIZES, [4, 5, 5], [2, 2, 2]], ids=str)
@pytest.mark.parametrize("name", NETWORKS)
def test_padded_clients_are_plain_networks_on_their_real_samples(compare, name, sizes):
    make, shape = NETWORKS[name]
    torch.manual_seed(0)
    network = nn.Sequential(make())
    for number, layer in enumerate(network.modules()):
        if getattr(layer, "num_batches_tracked", None) is not None:
            layer.num_batches_tracked += number  # so that an average over all batches has some behind it
    inputs = torch.randn(3, 5, *shape, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    compare(network, inputs, sizes=sizes, mask=True)


@pytest.mark.usefixtures("averages_allowed")
@pytest.mark.parametrize("training", [True, False])
def test_averages_over_all_batches_need_no_padding(compare, training):
    inputs = torch.randn(3, 5, *IMAGE, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    compare(nn.Sequential(nn.BatchNorm2d(4, momentum=None)), inputs, training)


def test_the_gradient_of_padding_is_right_too():
    """Other losses than the run's may look at it."""
    shares = torch.tensor([[1 / 3, 1 / 3, 1 / 3, 0], [0.5, 0.5, 0, 0]], dtype=torch.float64)
    x = torch.randn(4, 2, 3, 2, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()
    weight, bias = (torch.rand(2, 3, dtype=torch.float64, requires_grad=True) for _ in range(2))
    run = functools.partial(masked_batch_norm, running=None, shares=shares, rate=0.1, eps=1e-5)
    assert torch.autograd.gradcheck(lambda x, w, b: run(x, weight=w, bias=b), (x, weight, bias))
    assert torch.autograd.gradcheck(lambda w: run(x.detach(), weight=w, bias=None), (weight,))
    assert torch.autograd.gradcheck(lambda b: run(x.detach(), weight=None, bias=b), (bias,))


def test_bfloat16_activations_have_statistics_in_float32():
    """As torch's own batch norm under autocast."""
    x = torch.randn(8, 1, 3, 6, 6, generator=torch.Generator().manual_seed(1)).bfloat16() + 3
    ours, theirs = (x.clone().requires_grad_() for _ in range(2))
    weight, bias = torch.rand(1, 3), torch.rand(1, 3)
    running, expected_running = ([torch.zeros(1, 3), torch.ones(1, 3)] for _ in range(2))
    found = masked_batch_norm(ours, tuple(running), weight, bias, torch.full((1, 8), 1 / 8), 0.1, 1e-5)
    mean, var = (t[0] for t in expected_running)
    expected = F.batch_norm(theirs[:, 0], mean, var, weight[0], bias[0], True, 0.1, 1e-5)
    assert found.dtype == expected.dtype == torch.bfloat16
    torch.testing.assert_close(found[:, 0], expected, rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(running, expected_running, rtol=1e-5, atol=1e-6)
    upstream = torch.linspace(-1, 1, found.numel()).view(found.shape).bfloat16()
    (mine,), (its,) = (
        torch.autograd.grad(out, leaf, g)
        for out, leaf, g in ((found, ours, upstream), (expected, theirs, upstream[:, 0]))
    )
    assert mine.dtype == torch.bfloat16
    torch.testing.assert_close(mine, its, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize(("layer", "shape"), [(nn.BatchNorm1d(6), (6,)), (nn.BatchNorm2d(6), (6, 1, 1))])
def test_a_batch_of_one_sample_is_refused_in_torchs_words(compare, layer, shape):
    words = "Expected more than 1 value per channel when training, got input size torch.Size"
    with pytest.raises(ValueError, match=words):
        layer(torch.zeros(1, *shape))
    for sizes in ([3, 1, 2], [1, 1, 1]):
        with pytest.raises(ValueError, match=words):
            compare(nn.Sequential(layer), torch.zeros(3, 3, *shape), sizes=sizes, mask=True)


def test_one_sample_with_several_positions_is_enough(compare):
    compare(nn.Sequential(nn.BatchNorm2d(4)), torch.randn(3, 5, *IMAGE).double(), sizes=[5, 1, 3], mask=True)


# --- which networks ---------------------------------------------------------------------------------------------------
class OwnNorm(nn.BatchNorm1d):
    """A subclass of a batch norm, which is traced instead of using the rule for batch norms."""

    def forward(self, x):
        return x - (x.mean(0) if self.training else self.running_mean)


def wide(function, *layers):
    return lambda: Forward(function, nn.Linear(6, 5), *layers, nn.Linear(5, 3))


MASKED = {
    "a batch norm": (wide(lambda x, first, norm, last: last(norm(first(x))), nn.BatchNorm1d(5)), True),
    "dropout": (
        wide(lambda x, first, norm, drop, last: last(drop(norm(first(x)))), nn.BatchNorm1d(5), nn.Dropout(0.5)),
        True,
    ),
    "no batch norm": (wide(lambda x, first, last: last(first(x))), False),
}


class Meeting(nn.Module):
    """A batch norm, and in training something else through which samples interact."""

    def __init__(self, function):
        super().__init__()
        self.function, self.norm, self.head = function, nn.BatchNorm1d(6), nn.Linear(6, 3)

    def forward(self, x):
        x = self.norm(x)
        return self.head(self.function(x) if self.training else x)


MEETING = {
    "mean": lambda x: x - x.mean(0),
    "the largest": lambda x: x / x.detach().abs().max(),
    "a late one": lambda x: x - x[18:19].sum(0),
}


@pytest.mark.parametrize("name", MASKED)
def test_padding_is_masked_if_only_batch_norms_couple_samples(federation, name):
    make, expected = MASKED[name]
    engine = federation(network=make(), sizes=(24, 8, 19), batch_size=8).engine
    assert not engine._context.network.masks_padding  # on a CPU equally long batches are faster together
    engine.all_at_once()
    assert engine._context.network.masks_padding == expected


@pytest.mark.parametrize("name", MEETING)
def test_other_coupling_allows_only_equal_clients_together(federation, naive, name):
    torch.manual_seed(0)
    sizes = (48, 20, 43, 26)
    f = federation(network=Meeting(MEETING[name]), sizes=sizes, batch_size=20)
    f.engine.all_at_once()
    assert not f.engine._context.network.masks_padding
    f.engine.train(References.rows("models", torch.arange(4)), f.training(lr=0.1))
    naive.check(f, functools.partial(torch.optim.SGD, lr=0.1), batch=20)


def test_custom_norms_allow_only_equal_clients_together(federation):
    engine = federation(network=nn.Sequential(OwnNorm(6), nn.Linear(6, 3)), sizes=(8, 8), batch_size=4).engine
    engine.all_at_once()
    assert not engine._context.network.masks_padding


# --- training ---------------------------------------------------------------------------------------------------------
@pytest.fixture
def passes(monkeypatch):
    """Counts the training passes of stacked networks: numbers of clients."""
    found = []

    def call(self, now, inputs, real=StackedNetwork.__call__):
        found.extend([len(inputs)] * now.training)
        return real(self, now, inputs)

    monkeypatch.setattr(StackedNetwork, "__call__", call)
    return found


def test_clients_of_all_sizes_go_through_the_network_together(federation, naive, passes):
    sizes = (42, 11, 35, 6, 38, 39, 14, 8)  # with batches of 4: 11, 3, 9, 2, 10, 10, 4 and 2 steps an epoch
    f = federation(kind="batchnorm", sizes=sizes)
    f.engine.all_at_once()
    passes.clear()
    trained = f.engine.train(References.rows("models", torch.arange(8)), f.training(lr=0.1))
    assert passes == [sum(2 * -(-size // 4) > step for size in sizes) for step in range(22)]
    losses = naive.check(f, functools.partial(torch.optim.SGD, lr=0.1))
    assert trained.losses.tolist() == pytest.approx(losses, rel=1e-10)


@pytest.fixture
def engine():
    """Only the stacked one pads."""
    return StackedEngine
