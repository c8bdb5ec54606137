"""Norms have the gradients of their formula, in whatever order their numbers lie; in both engines."""

import functools
import itertools
import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from banks import _data, make_federation
from networks import Forward
from torch import nn
from torch.utils.checkpoint import checkpoint
from turns import in_turn

from dfl_lightning.bank.references import References
from dfl_lightning.engines.loop.loop_engine import LoopEngine
from dfl_lightning.engines.trials import norm_strides
from dfl_lightning.engines.trials.norm_strides import NormRisk, risk_of, usual_strides

EPS = 1e-5


def numbers(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def formula(x, mean, var, weight=None, bias=None):
    """A norm, written out; weight and bias are [C]."""
    out = (x - mean) / (var + EPS).sqrt()
    along = (1, -1, *[1] * (x.dim() - 2))
    return out if weight is None else out * weight.view(along) + bias.view(along)


def statistics(x, over):
    return x.mean(over, keepdim=True), x.var(over, unbiased=False, keepdim=True)


# --- every order of every number -------------------------------------------------------------------------------------
def layouts(x):
    """The same numbers in several orders of dimensions, with usual and unusual strides in those of size 1."""
    places = list(range(2, x.dim()))
    orders = [[0, 1, *places], [0, *places, 1], [*places, 0, 1], [1, 0, *places], [0, *places[::-1], 1]]
    for order in orders:
        laid = x.permute(order).contiguous().permute([order.index(dim) for dim in range(x.dim())])
        yield laid
        for dim, stride in itertools.product([d for d, size in enumerate(x.shape) if size == 1], (1, 7)):
            strides = list(laid.stride())
            strides[dim] = stride
            yield laid.as_strided(laid.shape, strides)


def of_batch(x, tracking, weight, bias):
    """A batch norm's output and that of its formula; `tracking`: none, running statistics, or only those."""
    running = None if tracking == "none" else (numbers(x.shape[1]).to(x), 1 + numbers(x.shape[1]).to(x).square())
    mean, var = running or (None, None)
    along = (1, -1, *[1] * (x.dim() - 2))
    own = statistics(x, [0, *range(2, x.dim())]) if tracking != "frozen" else (mean.view(along), var.view(along))
    expected = formula(x, *own, weight, bias)
    training = tracking != "frozen"
    return norm_strides.batch_norm(x, mean, var, weight, bias, training, eps=EPS), expected


def of_instances(x, tracking, weight, bias):
    """The same of an instance norm."""
    running = None if tracking == "none" else (numbers(x.shape[1]).to(x), 1 + numbers(x.shape[1]).to(x).square())
    mean, var = running or (None, None)
    along = (1, -1, *[1] * (x.dim() - 2))
    own = statistics(x, list(range(2, x.dim()))) if tracking != "frozen" else (mean.view(along), var.view(along))
    expected = formula(x, *own, weight, bias)
    training = tracking != "frozen"
    return norm_strides.instance_norm(x, mean, var, weight, bias, training, eps=EPS), expected


SHAPES = {
    "one image": (1, 2, 3, 4),
    "images": (2, 2, 3, 4),
    "images of one row": (2, 3, 1, 4),
    "images of one column": (2, 3, 4, 1),
    "one channel": (2, 1, 3, 4),
    "one line": (1, 3, 4),
}
DTYPES = [*((name, torch.float64) for name in SHAPES), ("images", torch.float32)]


QUICK = {("none", "affine"), ("running", "plain"), ("frozen", "affine")}
"""Whether a norm has parameters takes turns; the other half with `-m slow`."""


@pytest.mark.parametrize(
    ("tracking", "affine"),
    [
        pytest.param(tracking, affine == "affine", id=f"{tracking}, {affine}", marks=marks)
        for tracking, affine in itertools.product(("none", "running", "frozen"), ("affine", "plain"))
        for marks in [[] if (tracking, affine) in QUICK else pytest.mark.slow]
    ],
)
@pytest.mark.parametrize("norm", [of_batch, of_instances])
@pytest.mark.parametrize(("shape", "dtype"), DTYPES, ids=lambda value: str(value).removeprefix("torch."))
def test_gradients_are_those_of_the_formula(shape, norm, tracking, affine, dtype):
    shape = SHAPES[shape]
    plain, upstream = numbers(*shape, dtype=dtype), numbers(*shape, seed=1, dtype=dtype)
    own = [numbers(shape[1], seed=seed, dtype=dtype).requires_grad_() for seed in (2, 3)] if affine else []
    expected = None
    for x, grad in itertools.product(layouts(plain), layouts(upstream)):
        leaf = x.detach().requires_grad_()
        out, written = norm(leaf, tracking, *(own or (None, None)))
        if expected is None:
            torch.testing.assert_close(out, written)
            expected = torch.autograd.grad(written, [leaf, *own], grad)
        found = torch.autograd.grad(out, [leaf, *own], grad)
        wrong = max(float((f - e).abs().max()) for f, e in zip(found, expected, strict=True))
        assert wrong < (1e-4 if dtype == torch.float32 else 1e-10), (x.stride(), grad.stride())


@pytest.mark.parametrize("norm", [of_batch, of_instances])
def test_gradients_of_volumes(norm):
    plain, upstream = numbers(1, 2, 3, 2, 4), numbers(1, 2, 3, 2, 4, seed=1)
    for x, grad in itertools.product(layouts(plain), layouts(upstream)):
        leaf = x.detach().requires_grad_()
        found, expected = (torch.autograd.grad(out, leaf, grad)[0] for out in norm(leaf, "none", None, None))
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("shape", [(1, 2, 3, 4), (3, 2, 1, 4), (1, 2, 3, 1, 4)])
def test_strides_match_torchs_without_moving_numbers(shape):
    last = torch.channels_last if len(shape) == 4 else torch.channels_last_3d
    usual = [torch.empty(shape).stride(), torch.empty(shape).contiguous(memory_format=last).stride()]
    for x in layouts(numbers(*shape)):
        found = usual_strides(x)
        assert torch.equal(found, x)
        assert found.data_ptr() == x.data_ptr()
        if not x.is_contiguous() and x.is_contiguous(memory_format=last):
            assert found.stride() == usual[1]
        else:
            assert found is x


def test_later_operations_may_write_into_the_output():
    x, grad = numbers(1, 2, 3, 4), numbers(1, 3, 4, 2, seed=1).as_strided((1, 2, 3, 4), (1, 1, 8, 2))
    for norm in (of_batch, of_instances):
        leaf = x.clone().requires_grad_()
        out, written = norm(leaf, "none", None, None)
        found, expected = (torch.autograd.grad(y, leaf, grad)[0] for y in (torch.relu_(out), torch.relu(written)))
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


def test_the_example_of_the_page_is_correct(capsys):
    page = (Path(__file__).parents[2] / "docs" / "faults.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    with NormRisk.SINGLE.guard(1):
        exec(example, {})
    assert float(re.search(r"tensor\((.*?)\)", capsys.readouterr().out)[1]) < 1e-5


# --- in the engines: networks with norms against the same networks with the norms written out ------------------------
class Written(nn.Module):
    """A batch or instance norm in plain arithmetic, with the parameters and buffers of torch's."""

    def __init__(self, norm):
        super().__init__()
        self.over = [2, 3] if isinstance(norm, nn.InstanceNorm2d) else [0, 2, 3]
        for name, tensor in [*norm.named_parameters(), *norm.named_buffers()]:
            mine = tensor.detach().clone()
            if isinstance(tensor, nn.Parameter):
                self.register_parameter(name, nn.Parameter(mine))
            else:
                self.register_buffer(name, mine)

    def forward(self, x):
        mean, var = statistics(x, self.over)
        if self.training and hasattr(self, "running_mean"):
            count = x.numel() / x.shape[1]
            for running, now in ((self.running_mean, mean), (self.running_var, var * count / (count - 1))):
                running.lerp_(now.detach().flatten(), 0.1)
            if hasattr(self, "num_batches_tracked"):
                self.num_batches_tracked += 1
        elif not self.training and hasattr(self, "running_mean"):
            mean, var = self.running_mean.view(1, -1, 1, 1), self.running_var.view(1, -1, 1, 1)
        return formula(x, mean, var, getattr(self, "weight", None), getattr(self, "bias", None))


class OfBuffers(nn.Module):
    """A batch norm that a user's layer calls as a function."""

    def __init__(self):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(4)), nn.Parameter(torch.zeros(4))
        self.register_buffer("running_mean", torch.zeros(4))
        self.register_buffer("running_var", torch.ones(4))

    def forward(self, x):
        return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, self.training)


NORMS = {
    "batch norm as a function": OfBuffers,
    "batch norm": lambda: nn.BatchNorm2d(4),
    "batch norm without parameters": lambda: nn.BatchNorm2d(4, affine=False),
    "instance norm": lambda: nn.InstanceNorm2d(4),
    "affine instance norm": lambda: nn.InstanceNorm2d(4, affine=True),
    "instance norm as a function": lambda: Forward(F.instance_norm),
    "instance norm as torch has it": lambda: Forward(
        lambda x: torch.instance_norm(x, None, None, None, None, True, 0.1, EPS, False)
    ),
}


def product(net, x):
    return net.conv(x).mean((2, 3))


def attention(net, x):
    places = x.flatten(2).permute(2, 0, 1).transpose(0, 1)
    return (places @ places.transpose(1, 2)).softmax(2).matmul(places).mean(1)


def sequence(net, x):
    return x.permute(2, 3, 0, 1).pow(3).flatten(0, 1).mean(0)


def contraction(net, x):
    return torch.einsum("nchw,nchw->nc", x, net.conv(x)) / 9


def gate(net, x):
    return (x * torch.sigmoid(net.conv(x))).mean((2, 3))


def concatenation(net, x):
    return torch.cat([x, net.conv(x)], 1).unflatten(1, (2, 4)).mean((1, 3, 4))


BEHIND = (product, attention, sequence, contraction, gate, concatenation)


class Net(nn.Module):
    """A convolution, a norm, and what comes behind it."""

    def __init__(self, norm, behind, height=6):
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.first, self.conv = nn.Conv2d(1, 4, (min(3, height), 3), bias=False), nn.Conv2d(4, 4, 1)
            self.head = nn.Linear(4, 3)
        self.norm, self.behind = norm, behind

    def forward(self, x):
        return self.head(self.behind(self, self.norm(self.first(x))))


def trained(f):
    f.engine.train(References.rows("models", torch.arange(3)), f.training())
    return f.bank.rows("trained")


def written(norm):
    return Written(nn.InstanceNorm2d(4)) if isinstance(norm, Forward) else Written(norm)


@functools.cache
def by_formula(norm, behind, sizes, height):
    """Train with the norm written out, client by client; both engines are compared with this."""
    network = Net(written(NORMS[norm]()), behind, height)
    return trained(make_federation(network=network, data=_data(sizes, (1, height, 6)), engine=LoopEngine))


@pytest.mark.parametrize(("norm", "behind"), in_turn(NORMS, BEHIND))
def test_batches_of_one_sample_train_as_the_formula(federation, make_data, norm, behind, engine):
    """Clients of 1, 5 and 9 images: in batches of 4, each has a batch of one."""
    ours = trained(federation(network=Net(NORMS[norm](), behind), data=make_data((1, 5, 9), (1, 6, 6))))
    torch.testing.assert_close(ours, by_formula(norm, behind, (1, 5, 9), 6), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("behind", [attention, sequence])
@pytest.mark.parametrize("norm", NORMS)
def test_images_of_one_row_train_as_by_the_formula(federation, make_data, norm, behind, engine):
    ours = trained(federation(network=Net(NORMS[norm](), behind, 1), data=make_data((8, 8, 8), (1, 1, 6))))
    torch.testing.assert_close(ours, by_formula(norm, behind, (8, 8, 8), 1), rtol=1e-9, atol=1e-9)


class Own(nn.BatchNorm2d):
    """A user's own kind of batch norm."""


class OwnInstanceNorm(nn.InstanceNorm2d):
    """A user's own kind of instance norm."""


def checkpointed(net, x):
    """Computed again in the backward pass."""
    odd = x.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
    return checkpoint(lambda x: net.inner(x).mean((2, 3)), odd, use_reentrant=False)


@pytest.mark.parametrize("kind", ["a user's own class", "a function", "a function in a checkpoint"])
def test_the_loop_engine_corrects_norms_that_it_alone_trains(federation, make_data, kind):
    def net(norm):
        made = Net(norm if "checkpoint" not in kind else nn.Identity(), sequence)
        if "checkpoint" in kind:
            made.behind, made.inner = checkpointed, norm
        return made

    ours = Own(4) if "class" in kind else Forward(lambda x: F.batch_norm(x, None, None, None, None, True))
    plain = nn.BatchNorm2d(4) if "class" in kind else nn.BatchNorm2d(4, affine=False, track_running_stats=False)
    data = make_data((1, 5, 9), (1, 6, 6))
    found, expected = (
        trained(federation(network=net(norm), data=data, engine=LoopEngine)) for norm in (ours, Written(plain))
    )
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


# --- when it costs something -----------------------------------------------------------------------------------------
def risk(network, shape=(1, 6, 6)):
    x = numbers(3, *shape, dtype=torch.float32)
    return risk_of(network, network(x), lambda: network(x))


def test_norms_are_detected_before_training():
    assert risk(nn.Conv2d(1, 4, 3)) is NormRisk.NONE
    assert risk(nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4))) is NormRisk.NONE
    assert risk(Net(nn.BatchNorm2d(4), product)) is NormRisk.SINGLE
    assert risk(Net(Forward(lambda x: F.batch_norm(x, None, None, None, None, True)), product)) is NormRisk.SINGLE
    assert risk(Net(nn.BatchNorm2d(4), product, 1), (1, 1, 6)) is NormRisk.ALL
    assert risk(Net(nn.InstanceNorm2d(4), product)) is NormRisk.SINGLE
    assert risk(Net(OwnInstanceNorm(4), product)) is NormRisk.ALL
    assert risk(Net(nn.Sequential(nn.InstanceNorm2d(4), Forward(F.instance_norm)), product)) is NormRisk.ALL
    unused = Net(nn.Identity(), product)
    unused.spare = nn.BatchNorm2d(4)  # a pass may come to it later
    assert risk(unused) is NormRisk.SINGLE


def test_batches_of_several_samples_are_not_watched(federation, make_data, monkeypatch):
    """The number of active modes for torch functions is recorded in each pass of training, by size of the batch."""
    seen = {}

    def watch(x):
        seen.setdefault(len(x), set()).add(torch._C._len_torch_function_stack())
        return x

    network = Net(nn.Sequential(nn.BatchNorm2d(4), nn.InstanceNorm2d(4), Forward(watch)), product)
    f = federation(network=network, data=make_data((5, 6, 9), (1, 6, 6)), engine=LoopEngine)
    seen.clear()
    trained(f)
    assert seen == {1: {1}, 2: {0}, 4: {0}}
