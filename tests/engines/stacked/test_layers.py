"""Every layer that the stacked engine knows, and some that it does not, against plain layers: float64, 1e-10."""

import functools
import inspect
import operator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from networks import Forward
from torch import nn
from turns import in_turn

from dfl_lightning.data.parts import taken
from dfl_lightning.engines.stacked.layers.activation import Activation
from dfl_lightning.engines.stacked.layers.kernels import BatchedLinear
from dfl_lightning.engines.stacked.layers.passes import Pass
from dfl_lightning.engines.stacked.layers.rules import FUNCTIONS, METHODS, MODULES

LINE, IMAGE, SOLID = (4, 9), (4, 7, 6), (4, 5, 4, 6)  # of one sample: channels first


@dataclass(eq=False)
class Case:
    """A layer or a function, and the shape of one sample that it takes.

    Args:
        name: of the test.
        network: a factory of a plain module.
        shape: of one sample.
        words: 0: inputs are any numbers; else they are integers below `words`.
        couples: whether the samples of a batch meet, so that padding takes part.
    """

    name: str
    network: Any
    shape: tuple[int, ...]
    words: int = 0
    couples: bool = False


def layer(kind, *args, shape=IMAGE, words=0, couples=False, **options):
    """A case of one layer."""
    named = "-".join([kind.__name__, *map(str, args), *(f"{key}={value}" for key, value in options.items())])
    return Case(named.replace(" ", ""), lambda: nn.Sequential(kind(*args, **options)), shape, words, couples)


def calls(name, function, *layers, shape=IMAGE):
    """A case of a forward pass."""
    return Case(name, lambda: Forward(function, *[make() for make in layers]), shape)


def images():
    """A layer that puts the clients side by side."""
    return nn.Conv2d(4, 4, 1)


LAYERS = [
    layer(nn.Linear, 6, 5, shape=(6,)),
    layer(nn.Linear, 6, 5, bias=False, shape=(6,)),
    layer(nn.Linear, 6, 1, shape=(7, 6)),
    layer(nn.Linear, 6, 5),
    layer(nn.Conv1d, 4, 3, 3, shape=LINE),
    layer(nn.Conv1d, 4, 6, 3, stride=2, padding=2, dilation=2, groups=2, padding_mode="circular", shape=LINE),
    layer(nn.Conv2d, 4, 3, 3),
    layer(nn.Conv2d, 4, 3, 3, bias=False),
    layer(nn.Conv2d, 4, 6, 3, stride=2, padding=1, groups=2),
    layer(nn.Conv2d, 4, 8, (3, 2), stride=(1, 2), padding=(0, 1), dilation=(2, 1), groups=4),
    layer(nn.Conv2d, 4, 5, 1),
    layer(nn.Conv2d, 4, 1, 3),
    layer(nn.Conv2d, 1, 4, 3, shape=(1, 7, 6)),
    layer(nn.Conv2d, 1, 1, 1, shape=(1, 7, 6)),
    layer(nn.Conv2d, 4, 3, 3, padding="same"),
    layer(nn.Conv2d, 4, 3, 3, padding="valid"),
    *[layer(nn.Conv2d, 4, 3, 3, padding=(1, 2), padding_mode=mode) for mode in ("reflect", "replicate", "circular")],
    layer(nn.Conv3d, 4, 2, 3, padding=1, groups=2, shape=SOLID),
    layer(nn.ConvTranspose1d, 4, 6, 3, stride=2, output_padding=1, groups=2, shape=LINE),
    layer(nn.ConvTranspose2d, 4, 6, 3, stride=2, padding=1, output_padding=1, groups=2),
    layer(nn.ConvTranspose2d, 4, 3, 2, dilation=2, bias=False),
    layer(nn.ConvTranspose3d, 4, 2, 2, shape=SOLID),
    layer(nn.GroupNorm, 2, 4),
    layer(nn.GroupNorm, 1, 4, affine=False),
    layer(nn.GroupNorm, 4, 4, eps=0.1, shape=(4, 6)),
    layer(nn.GroupNorm, 3, 6, shape=(6,)),
    layer(nn.LayerNorm, 6, shape=(6,)),
    layer(nn.LayerNorm, 6),
    layer(nn.LayerNorm, [7, 6], elementwise_affine=False),
    layer(nn.LayerNorm, [4, 7, 6], eps=0.1, bias=False),
    layer(nn.BatchNorm1d, 6, shape=(6,), couples=True),
    layer(nn.BatchNorm1d, 4, shape=LINE, couples=True),
    layer(nn.BatchNorm2d, 4, couples=True),
    layer(nn.BatchNorm2d, 4, momentum=0.3, eps=0.01, couples=True),
    layer(nn.BatchNorm2d, 4, affine=False, couples=True),
    layer(nn.BatchNorm2d, 4, momentum=0.0, couples=True),
    layer(nn.BatchNorm3d, 4, shape=SOLID, couples=True),
    layer(nn.InstanceNorm1d, 4, shape=LINE),
    layer(nn.InstanceNorm2d, 4, affine=True, eps=0.1),
    layer(nn.InstanceNorm3d, 4, shape=SOLID),
    layer(nn.Embedding, 7, 5, words=7, shape=(4,)),
    layer(nn.Embedding, 7, 5, words=7, shape=(2, 3)),
    layer(nn.Embedding, 3, 5, padding_idx=1, words=3, shape=(4,)),
    layer(nn.Dropout, 0.4),
    layer(nn.Dropout, 0.0),
    layer(nn.Dropout, 1.0),
    layer(nn.Dropout1d, 0.4, shape=LINE),
    layer(nn.Dropout2d, 0.4),
    layer(nn.Dropout3d, 0.4, shape=SOLID),
    layer(nn.Flatten),
    layer(nn.Flatten, 2),
    layer(nn.Flatten, -3, -2),
    layer(nn.Identity),
    layer(nn.Sequential),
    layer(nn.MaxPool1d, 2, shape=LINE),
    layer(nn.MaxPool1d, 3, stride=2, padding=1, ceil_mode=True, shape=LINE),
    layer(nn.MaxPool2d, 2),
    layer(nn.MaxPool2d, 3, stride=2, padding=1, ceil_mode=True),
    layer(nn.MaxPool2d, 2, stride=1, dilation=2),
    layer(nn.MaxPool2d, 1),
    layer(nn.MaxPool3d, 2, shape=SOLID),
    layer(nn.AvgPool1d, 2, padding=1, count_include_pad=False, shape=LINE),
    layer(nn.AvgPool2d, 2),
    layer(nn.AvgPool2d, 3, stride=2, padding=1, ceil_mode=True, count_include_pad=False),
    layer(nn.AvgPool2d, 2, divisor_override=3),
    layer(nn.AvgPool3d, 2, divisor_override=3, shape=SOLID),
    layer(nn.AdaptiveAvgPool1d, 4, shape=LINE),
    layer(nn.AdaptiveAvgPool2d, (3, None)),
    layer(nn.AdaptiveAvgPool2d, 1),
    layer(nn.AdaptiveAvgPool3d, 2, shape=SOLID),
    layer(nn.AdaptiveMaxPool1d, 4, shape=LINE),
    layer(nn.AdaptiveMaxPool2d, (3, 2)),
    layer(nn.AdaptiveMaxPool3d, 2, shape=SOLID),
    layer(nn.ReLU),
    layer(nn.ReLU, inplace=True),
    layer(nn.ReLU6),
    layer(nn.LeakyReLU, 0.3),
    layer(nn.LeakyReLU, 0.3, inplace=True),
    layer(nn.ELU, 0.5),
    layer(nn.ELU, 0.5, inplace=True),
    layer(nn.SELU, inplace=True),
    layer(nn.CELU, 0.5, inplace=True),
    layer(nn.GELU),
    layer(nn.GELU, approximate="tanh"),
    layer(nn.SiLU, inplace=True),
    layer(nn.Mish, inplace=True),
    layer(nn.Softplus, 2.0, 0.5),
    layer(nn.Softsign),
    layer(nn.Hardtanh, -0.3, 0.7),
    layer(nn.Hardtanh, -0.3, 0.7, inplace=True),
    layer(nn.Hardswish, inplace=True),
    layer(nn.Hardsigmoid),
    layer(nn.LogSigmoid),
    layer(nn.Tanh),
    layer(nn.Sigmoid),
    # without a rule: by way of vmap
    layer(nn.PReLU),
    layer(nn.PReLU, 4),
    layer(nn.RMSNorm, 6),
    layer(nn.Softmax, dim=1),
    layer(nn.LogSoftmax, dim=-1),
    layer(nn.LocalResponseNorm, 2),
    layer(nn.PixelShuffle, 2),
    layer(nn.ZeroPad2d, (1, 0, 2, 1)),
    layer(nn.Upsample, scale_factor=2),
    layer(nn.Unflatten, 1, (2, 2)),
    layer(nn.Threshold, 0.1, -1.0),
    layer(nn.GLU, dim=1),
    *[
        calls(
            f"{kind.__name__} of {count}",
            lambda x, own: own(x)[0][:, -1],
            functools.partial(kind, *sizes, **more),
            shape=LINE,
        )
        for kind, sizes in ((nn.RNN, (9, 5)), (nn.GRU, (9, 5)), (nn.LSTM, (9, 5)))
        for count, more in ((1, {"batch_first": True}), (2, {"batch_first": True, "num_layers": 2, "dropout": 0.3}))
    ],
    calls("Bilinear", lambda x, own: own(x, torch.tanh(x)), lambda: nn.Bilinear(6, 6, 3), shape=(6,)),
    calls(
        "MultiheadAttention",
        lambda x, own: own(x, x, x)[0],
        lambda: nn.MultiheadAttention(6, 2, batch_first=True),
        shape=(5, 6),
    ),
    calls("weight norm", lambda x, own: own(x), lambda: nn.utils.parametrizations.weight_norm(nn.Linear(6, 5))),
]

POOLS = {
    "max_pool1d": (lambda x: F.max_pool1d(x, 3, 2, 1), LINE),
    "max_pool2d": (lambda x: F.max_pool2d(x, 3, 2, 1, ceil_mode=True), IMAGE),
    "max_pool3d": (lambda x: F.max_pool3d(x, 2), SOLID),
    "avg_pool1d": (lambda x: F.avg_pool1d(x, 2), LINE),
    "avg_pool2d": (lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False), IMAGE),
    "avg_pool3d": (lambda x: F.avg_pool3d(x, 2), SOLID),
    "adaptive_avg_pool1d": (lambda x: F.adaptive_avg_pool1d(x, 2), LINE),
    "adaptive_avg_pool2d": (lambda x: F.adaptive_avg_pool2d(x, (3, 1)), IMAGE),
    "adaptive_avg_pool3d": (lambda x: F.adaptive_avg_pool3d(x, 2), SOLID),
    "adaptive_max_pool1d": (lambda x: F.adaptive_max_pool1d(x, 2), LINE),
    "adaptive_max_pool2d": (lambda x: F.adaptive_max_pool2d(x, 2), IMAGE),
    "adaptive_max_pool3d": (lambda x: F.adaptive_max_pool3d(x, 2), SOLID),
}
ENTRYWISE = {
    **{
        name: getattr(F, name) for name in ("relu", "relu6", "gelu", "softplus", "softsign", "hardswish", "hardsigmoid")
    },
    **{name: getattr(F, name) for name in ("logsigmoid", "selu", "silu", "mish", "tanh", "sigmoid")},
    "leaky_relu": lambda x: F.leaky_relu(x, 0.3),
    "elu": lambda x: F.elu(x, alpha=0.5),
    "celu": lambda x: F.celu(x, 0.5),
    "hardtanh": lambda x: F.hardtanh(x, -0.3, 0.7),
    "torch.relu": torch.relu,
    "torch.tanh": torch.tanh,
    "torch.sigmoid": torch.sigmoid,
    "torch.exp": torch.exp,
    "torch.sqrt": lambda x: torch.sqrt(torch.exp(x)),
    "torch.square": torch.square,
    "torch.abs": torch.abs,
    "negative": operator.neg,
    "F.relu(x, True)": lambda x: F.relu(x, True),
    "F.relu(x, inplace=True)": lambda x: F.relu(x, inplace=True),
    "F.elu(x, inplace=True)": lambda x: F.elu(x, inplace=True),
    "x.relu()": lambda x: x.relu(),
    "x.tanh()": lambda x: x.tanh(),
    "x.sigmoid()": lambda x: x.sigmoid(),
}


def _iadd(x, own):
    y = own(x)
    y += torch.tanh(x)
    return y


def _imul(x, own):
    y = own(x)
    y *= 3
    return y


ARITHMETIC = {
    "a residual": lambda x, own: x + own(x),
    "a residual behind": lambda x, own: own(x) + x,
    "a residual of two": lambda x, own: own(own(x)) + own(x),
    "a difference": lambda x, own: x - own(x),
    "a product": lambda x, own: own(x) * x,
    "a quotient": lambda x, own: own(x) / (2 + torch.square(x)),
    "numbers": lambda x, own: 1 - 2 * (own(x) + 3) / 4,
    "a number before": lambda x, own: 1 / (2 + torch.square(own(x))),
    "torch.add": lambda x, own: torch.add(own(x), x),
    "torch.add of a number": lambda x, own: torch.add(own(x), 0.5),
    "torch.mul": lambda x, own: torch.mul(own(x), x),
    "+=": _iadd,
    "*=": _imul,
    "broadcasting": lambda x, own: own(x) * own(x).mean((2, 3), keepdim=True),
    "a gate of channels": lambda x, own: own(x) * torch.sigmoid(F.adaptive_avg_pool2d(x, 1)),
}
SHAPES = {
    "torch.flatten": lambda x, own: torch.flatten(own(x), 1),
    "torch.flatten of some": lambda x, own: torch.flatten(own(x), start_dim=1, end_dim=2),
    "flatten": lambda x, own: own(x).flatten(1),
    "view": lambda x, own: own(x).contiguous().view(x.size(0), -1),
    "view of a list": lambda x, own: own(x).contiguous().view([-1, 4 * 7 * 6]),
    "reshape": lambda x, own: own(x).reshape(x.shape[0], 2, -1),
    "reshape of a tuple": lambda x, own: own(x).reshape((x.size()[0], -1)),
    "dim": lambda x, own: own(x).flatten(x.dim() - 3),
    "shape": lambda x, own: own(x).reshape(-1, x.shape[1] * x.shape[2], x.size(-1)),
    "chunk and cat": lambda x, own: torch.cat([own(x).chunk(2, dim=1)[1], x], dim=1),
    "transpose": lambda x, own: own(x).transpose(1, 2),
    "permute": lambda x, own: own(x).permute(0, 2, 3, 1),
    "an index": lambda x, own: own(x)[:, 1:3, ::2],
    "a mean": lambda x, own: own(x).mean(dim=(-2, -1)),
    "a maximum": lambda x, own: own(x).amax(1),
    "functional softmax": lambda x, own: F.softmax(own(x), dim=1),
    "functional log_softmax": lambda x, own: torch.log_softmax(own(x), -1),
    "padding": lambda x, own: F.pad(own(x), (1, 2)),
    "matmul": lambda x, own: own(x) @ x.transpose(-1, -2),
    "einsum": lambda x, own: torch.einsum("bchw,bdhw->bcd", own(x), x),
    "a constant": lambda x, own: own(x) * torch.arange(6),
    "a constant like x": lambda x, own: own(x) * torch.ones(6, device=x.device, dtype=x.dtype),
    "ndim": lambda x, own: own(x).flatten(x.ndim - 2),
    "mT": lambda x, own: own(x).mT,
    "unflatten": lambda x, own: own(x).unflatten(-1, (2, -1)),
    "padding of two": lambda x, own: F.pad(own(x), (1, 2, 0, 1)),
    "causal attention": lambda x, own: F.scaled_dot_product_attention(x, own(x), x, is_causal=True),
    "attention of a mask": lambda x, own: F.scaled_dot_product_attention(x, own(x), x, torch.ones(7, 7).tril().bool()),
    "attention of masks": lambda x, own: F.scaled_dot_product_attention(own(x), x, x, (x @ x.mT) > 0),
}


class Free(nn.Module):
    """Parameters that the network uses by itself."""

    def __init__(self):
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.rand(6)), nn.Parameter(torch.rand(4, 7, 6))
        self.matrix, self.kernel = nn.Parameter(torch.rand(6, 5)), nn.Parameter(torch.rand(3, 4, 2, 2))
        self.slope = nn.Parameter(torch.rand(4))

    def forward(self, x):
        y = F.prelu(self.scale * x + self.shift, self.slope)
        return F.conv2d(y, self.kernel).flatten(1) + (y @ self.matrix).mean((1, 2, 3), keepdim=True).flatten(1)


class Buffered(nn.Module):
    """A layer with a buffer that training does not change."""

    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.rand(6))

    def forward(self, x):
        return x * self.scale


class Tied(nn.Module):
    """One layer in two places, one parameter in two layers."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6, bias=False)
        self.again, self.second.weight, self.third.weight = self.first, self.first.weight, self.first.weight

    def forward(self, x):
        return self.third(torch.tanh(self.again(torch.tanh(self.second(torch.tanh(self.first(x)))))))


class OwnLayer(nn.Conv2d):
    """A user's own layer is looked into."""

    def forward(self, x):
        return 2 * super().forward(x)


class CallsBatchNorm(nn.Module):
    """A batch norm that is called as a function, of all channels or of one of them."""

    def __init__(self, function, channels):
        super().__init__()
        self.function, self.channels = function, channels
        self.weight = nn.Parameter(torch.ones(channels))
        self.register_buffer("mean", torch.zeros(channels))
        self.register_buffer("var", torch.ones(channels))

    def forward(self, x):
        return self.function(x[:, : self.channels], self.mean, self.var, weight=self.weight, training=self.training)


def torchs_batch_norm(x, mean, var, weight, training):
    return torch.batch_norm(x, weight, None, mean, var, training, 0.1, 1e-5, False)


NETWORKS = [
    *[
        Case(f"{name} of {channels}", lambda f=function, c=channels: CallsBatchNorm(f, c), IMAGE, couples=True)
        for name, function in {"F.batch_norm": F.batch_norm, "torch.batch_norm": torchs_batch_norm}.items()
        for channels in (4, 1)
    ],
    Case("free parameters", Free, IMAGE),
    Case("a buffer", Buffered, IMAGE),
    Case("tied layers", Tied, (6,)),
    Case("a user's own layer", lambda: OwnLayer(4, 3, 2), IMAGE),
    Case(
        "a batch norm without statistics",
        lambda: nn.Sequential(nn.BatchNorm2d(4, track_running_stats=False)),
        IMAGE,
        couples=True,
    ),
    Case("one layer twice", lambda: Forward(lambda x, own: own(own(x)), nn.BatchNorm2d(4)), IMAGE, couples=True),
    Case(
        "dropout before and behind",
        lambda: nn.Sequential(nn.Dropout(0.3), nn.Conv2d(4, 5, 3), nn.Dropout2d(0.4), nn.Flatten(), nn.Dropout(0.5)),
        IMAGE,
    ),
]
CALLS = [
    *[calls(f"F.{name}", lambda x, pool=pool: pool(x), shape=shape) for name, (pool, shape) in POOLS.items()],
    *[calls(name, lambda x, function=function: function(x * 1)) for name, function in ENTRYWISE.items()],
    *[calls(name, function, images) for name, function in {**ARITHMETIC, **SHAPES}.items()],
]
CASES = [*LAYERS, *CALLS, *NETWORKS]
BATCH = 4


def inputs_of(case):
    generator = torch.Generator().manual_seed(4)
    shape = (3, BATCH, *case.shape)
    if case.words:
        return torch.randint(0, case.words, shape, generator=generator)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


@pytest.fixture(scope="module")
def traced(stack):
    """The stacked form of a case, the same one for all tests: tracing takes longer than a comparison."""

    @functools.cache
    def traced(case):
        torch.manual_seed(0)
        return stack.network(case.network())

    return traced


# torch's own loop where an operation has no batching rule, such as that of nn.Bilinear: slower, and right
slow_vmap = pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")


@slow_vmap
@pytest.mark.parametrize(
    ("training", "case"), in_turn([True, False], CASES), ids=lambda value: getattr(value, "name", value)
)
def test_three_clients_stacked_are_three_plain_networks(compare, traced, case, training):
    compare(traced(case), inputs_of(case), training)
    if not case.couples or (not training and "without statistics" not in case.name):
        compare(traced(case), inputs_of(case), training, sizes=[BATCH, 1, 3])


@slow_vmap
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_inputs_shared_by_all_clients_are_given_once(stack, traced, case):
    stacked = traced(case)
    tensors = stack.tensors(stack.clients(stacked.network)) or {"": torch.zeros(stack.number)}
    inputs = inputs_of(case)[:1]
    with torch.no_grad():
        found = stacked(Pass(dict(tensors), False), inputs * 1)
        expected = stacked(Pass(dict(tensors), False), inputs.expand(stack.number, *inputs.shape[1:]) * 1)
    assert torch.equal(inputs, inputs_of(case)[:1])
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


def test_shared_images_are_convolved_without_copies(stack, monkeypatch):
    """Neither copied for each client nor convolved in groups."""
    monkeypatch.delattr(Activation, "spread")
    network = nn.Sequential(nn.Conv2d(4, 3, 2)).double()
    clients = stack.clients(network)
    image = torch.randn(1, BATCH, *IMAGE, dtype=torch.float64)
    with torch.no_grad():
        found = MODULES[nn.Conv2d](network[0], "0", Pass(stack.tensors(clients), False), Activation(image, 1))
        assert found.clients == stack.number
        for client, scores in zip(clients, found.leading(), strict=True):
            torch.testing.assert_close(scores, client(image[0]), rtol=1e-12, atol=1e-12)


BEHIND = {1: nn.Linear, 2: nn.Conv1d, 3: nn.Conv2d, 4: nn.Conv3d}


@slow_vmap
@pytest.mark.parametrize("case", [case for case in LAYERS + NETWORKS if not case.words], ids=lambda case: case.name)
def test_layers_accept_the_layout_of_the_layer_before(compare, case):
    """Behind a convolution, clients lie side by side; behind a linear layer, one after the other."""
    torch.manual_seed(0)
    channels = case.shape[0]
    before = BEHIND[len(case.shape)](*([channels, channels] if len(case.shape) == 1 else [channels, channels, 1]))
    network = nn.Sequential(before, case.network())
    compare(network, inputs_of(case), training=True, sizes=None if case.couples else [BATCH, 2, 3])
    compare(nn.Sequential(nn.Linear(case.shape[-1], case.shape[-1]), case.network()), inputs_of(case), training=True)


NEVER_TRACED = (operator.iadd, operator.imul, F.tanh, F.sigmoid, nn.Sequential, taken)
"""Inputs of several parts are in `test_inputs_of_parts.py`. fx records `a += b` as `a + b`, F.tanh(x) as `x.tanh()`,
and looks into an empty `Sequential` as into a full one."""


def test_every_rule_has_a_case(traced):
    covered = set()
    for case in CASES:
        layers = dict(traced(case).network.named_modules())
        for node in traced(case)._graphs[True].nodes:
            covered.add(type(layers[node.target]) if node.op == "call_module" else node.target)
    missing = [name for name in (*MODULES, *FUNCTIONS, *METHODS) if name not in covered]
    assert set(missing) <= set(NEVER_TRACED), missing


def test_rules_read_every_option_of_their_layers():
    """A rule that ignored an option would give wrong numbers, so all options of layers with rules are listed."""
    known = (
        "self args device dtype bias in_features out_features in_channels out_channels kernel_size stride padding "
        "dilation groups padding_mode output_padding num_groups num_channels eps affine normalized_shape "
        "elementwise_affine num_features momentum track_running_stats num_embeddings embedding_dim padding_idx "
        "max_norm norm_type scale_grad_by_freq sparse _weight _freeze p channelwise source start_dim end_dim kwargs "
        "return_indices ceil_mode count_include_pad divisor_override output_size inplace negative_slope alpha "
        "approximate beta threshold min_val max_val min_value max_value input_size hidden_size num_layers batch_first "
        "dropout bidirectional proj_size nonlinearity"
    )
    for kind in MODULES:
        if kind not in (nn.Identity, nn.Sequential):
            assert set(inspect.signature(kind.__init__).parameters) <= set(known.split()), kind


@pytest.mark.parametrize("channels", [False, True], ids=["leading", "channels"])
def test_changes_in_place_are_visible_through_every_alias(channels):
    """Rules for graphs in which `+=` and `*=` stand; today's fx writes none."""
    numbers = torch.rand(2, 3 * 4, 5, 5) if channels else torch.rand(3, 2, 4, 5, 5)
    plain = Activation(numbers.clone(), 3, channels).leading().clone()
    x = Activation(numbers.clone(), 3, channels)
    alias = x
    assert FUNCTIONS[operator.iadd](x, Activation(plain.clone(), 3)) is x
    torch.testing.assert_close(alias.leading(), 2 * plain)
    assert FUNCTIONS[operator.imul](x, 3.0) is x
    torch.testing.assert_close(alias.leading(), 6 * plain)


@pytest.mark.parametrize("bias", [True, False])
def test_the_batched_linear_layer_has_the_correct_gradient(bias):
    inputs, weight = torch.rand(3, 4, 5, dtype=torch.float64), torch.rand(3, 2, 5, dtype=torch.float64)
    own = torch.rand(3, 2, dtype=torch.float64, requires_grad=True) if bias else None
    assert torch.autograd.gradcheck(BatchedLinear.apply, (inputs.requires_grad_(), weight.requires_grad_(), own))
    assert BatchedLinear.apply(inputs.detach(), weight, own).sum().grad_fn is not None
    torch.autograd.grad(BatchedLinear.apply(inputs.detach(), weight, own).sum(), [weight])
    torch.autograd.grad(BatchedLinear.apply(inputs, weight.detach(), own).sum(), [inputs])
