"""Networks that can be stacked, reasons against it, and rewriting of networks without effect on results."""

import functools
import re
import time
import warnings

import pytest
import torch
import torch.nn.functional as F
from banks import own
from threads import threads
from torch import nn
from torch.nn.utils import prune

from dfl_lightning.bank.references import References
from dfl_lightning.engines.factory import make_engine
from dfl_lightning.engines.loop.loop_engine import LoopEngine
from dfl_lightning.engines.stacked import CannotStack, StackedEngine
from dfl_lightning.engines.stacked.networks.traced import StackedNetwork
from dfl_lightning.utils.errors import UserError


class Forward(nn.Module):
    """A network whose forward pass is a function of itself and x."""

    def __init__(self, function, **layers):
        super().__init__()
        self.function = function
        self.head = nn.Linear(6, 3)
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, x):
        return self.head(self.function(self, x))


class FrozenStatistics(nn.Module):
    """Its batch norm stays in evaluation mode: a usual recipe of fine-tuning."""

    def __init__(self):
        super().__init__()
        self.norm, self.head = nn.BatchNorm1d(6), nn.Linear(6, 3)

    def train(self, mode=True):
        super().train(mode)
        self.norm.eval()
        return self

    def forward(self, x):
        return self.head(self.norm(x))


def hooked(layer, kind="register_forward_hook"):
    getattr(layer, kind)(lambda *args: None)
    return layer


def hooked_container():
    network = nn.Sequential(nn.Sequential(nn.Linear(6, 4), nn.Tanh()), nn.Linear(4, 3))
    hooked(network[0])
    return network


def words(self, x):
    return self.table(x.abs().long().clamp(max=4)).mean(1)


def table(**options):
    return lambda: Forward(words, table=nn.Embedding(5, 6, **options))


def mixes_in_evaluation(self, x):
    return x if self.training else x - x.mean(0)


class Running(nn.Module):
    """Running statistics by hand, in a buffer that is assigned."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(6, 5), nn.Linear(5, 3)
        self.register_buffer("running", torch.zeros(5))

    def forward(self, x):
        x = torch.tanh(self.body(x))
        if self.training:
            self.running = 0.9 * self.running + 0.1 * x.detach().mean(0)
        return self.head(x - self.running)


def old_weight_norm(layer):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # in favour of the parametrization
        return nn.utils.weight_norm(layer)


def pruned(layer):
    return prune.l1_unstructured(layer, "weight", 0.4)


def script(layer):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # in favour of torch.compile
        return torch.jit.script(layer)


def packed_and_padded(self, x):
    packed = nn.utils.rnn.pack_padded_sequence(x.unsqueeze(1), torch.ones_like(x[:, 0]).long().cpu(), True)
    return nn.utils.rnn.pad_packed_sequence(self.lstm(packed)[0], True)[0].squeeze(1)


REFUSED = {
    "packed sequences": (
        lambda: Forward(packed_and_padded, lstm=nn.LSTM(6, 6, batch_first=True)),
        r"it packs sequences \(pack_padded_sequence\), which only the loop engine can do",
    ),
    "control flow": (lambda: Forward(lambda self, x: x if x.sum() > 0 else -x), "its samples interact in evaluation"),
    "hook": (lambda: nn.Sequential(hooked(nn.Linear(6, 3))), r"layer '0' \(Linear\) has hooks"),
    "pre-hook": (
        lambda: nn.Sequential(hooked(nn.Linear(6, 3), "register_forward_pre_hook")),
        r"layer '0' \(Linear\) has hooks",
    ),
    "hook of a container": (hooked_container, r"layer '0' \(Sequential\) has hooks"),
    "hook of the network": (lambda: hooked(nn.Sequential(nn.Linear(6, 3))), "it has hooks"),
    "batch norm over all": (
        lambda: nn.Sequential(nn.BatchNorm1d(6, momentum=None), nn.Linear(6, 3)),
        r"layer '0' \(BatchNorm1d\) averages its statistics over all batches",
    ),
    "buffers": (
        lambda: nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(6, 3))),
        r"layer '0' \(ParametrizedLinear\) has buffers and no rule",
    ),
    "instance norm": (
        lambda: Forward(
            lambda self, x: self.norm(x.unsqueeze(1)).squeeze(1), norm=nn.InstanceNorm1d(1, track_running_stats=True)
        ),
        r"layer 'norm' \(InstanceNorm1d\) tracks running statistics",
    ),
    "largest norm": (table(max_norm=1.0), r"layer 'table' \(Embedding\) renormalises its rows"),
    "frequencies": (table(scale_grad_by_freq=True), r"layer 'table' \(Embedding\) scales its gradients"),
    "mixed samples": (lambda: Forward(mixes_in_evaluation), "its samples interact in evaluation"),
    "the first half": (lambda: Forward(lambda self, x: x - x[: x.shape[0] // 2].mean(0)), "its samples interact"),
    "from the fourth on": (lambda: Forward(lambda self, x: x - x[3:].sum(0) / 8), "its samples interact in evaluation"),
    "places": (lambda: Forward(lambda self, x: x + 0.1 * torch.arange(x.shape[0]).view(-1, 1)), "its samples interact"),
    "sizes of batches": (lambda: Forward(lambda self, x: x / x.shape[0]), "its samples interact in evaluation"),
    "a largest number": (lambda: Forward(lambda self, x: x / x.max()), "its samples interact in evaluation"),
    "an assigned buffer": (Running, "it assigns its buffer 'running' in its forward pass"),
    "weight norm": (lambda: nn.Sequential(old_weight_norm(nn.Linear(6, 3))), r"layer '0' \(Linear\) has hooks"),
    "pruning": (lambda: nn.Sequential(pruned(nn.Linear(6, 3))), r"layer '0' \(Linear\) has hooks"),
    "script": (lambda: nn.Sequential(script(nn.Linear(6, 3))), "layer '0' is scripted"),
    "batch norm without statistics": (
        lambda: nn.Sequential(nn.BatchNorm1d(6, track_running_stats=False), nn.Linear(6, 3)),
        "its samples interact in evaluation",
    ),
    "frozen statistics": (FrozenStatistics, "its outputs in training differ"),
    "random numbers": (
        lambda: Forward(lambda self, x: self.noise(x), noise=nn.AlphaDropout(0.5)),
        r"layer 'noise' \(AlphaDropout\)",
    ),
}


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
@pytest.mark.parametrize(("make", "reason"), REFUSED.values(), ids=REFUSED)
def test_unstackable_networks_use_the_loop_engine_with_a_reason(federation, make, reason):
    torch.manual_seed(0)
    network = make()
    with pytest.raises(CannotStack, match=reason):
        federation(network=network, sizes=(8, 4, 11))
    f = federation(network=network, sizes=(8, 4, 11), engine=functools.partial(make_engine, "auto"))
    assert type(f.engine) is LoopEngine
    assert f.engine.reason.startswith(f"{type(network).__name__} cannot be stacked: ")
    with pytest.raises(UserError, match=reason) as refusal:
        federation(network=network, sizes=(8, 4, 11), engine=functools.partial(make_engine, "stacked"))
    sentence = str(refusal.value)
    assert f.engine.reason in sentence
    assert sentence.startswith("engine=stacked: ")
    assert sentence.endswith("; use engine: loop, or auto, which chooses it")
    assert "\n" not in sentence


@pytest.mark.parametrize("choice", ["auto", "stacked"])
def test_stackable_networks_use_the_stacked_engine(federation, choice):
    f = federation(engine=functools.partial(make_engine, choice))
    assert type(f.engine) is StackedEngine
    assert f.engine.reason == ""


def test_an_engine_can_be_made_where_gradients_are_off(federation):
    with torch.no_grad():
        federation("batchnorm")
    with torch.inference_mode(False), torch.no_grad():
        f = federation("dropout")
        f.engine.train(own(0, 1, 2), f.training())
    assert not torch.equal(f.bank.rows("trained"), f.bank.rows("models"))


def test_making_an_engine_draws_nothing_and_leaves_the_network_alone(federation, make_network):
    network = make_network("batchnorm").eval()
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    state = torch.get_rng_state()
    federation(network=network, kind="batchnorm")
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())
    assert not any(module.training for module in network.modules())


# --- samples that meet ------------------------------------------------------------------------------------------------
class Centred(nn.Module):
    """Samples of a batch meet without a batch norm, in training alone."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(6, 5), nn.Linear(5, 3)

    def forward(self, x):
        x = torch.tanh(self.body(x))
        return self.head(x - x.mean(0) if self.training else x)


@pytest.mark.parametrize("kind", ["centred", "batchnorm", "mlp"])
def test_interacting_samples_do_not_interact_with_padding(federation, naive, make_network, kind):
    network = Centred() if kind == "centred" else make_network(kind)
    f = federation(kind if kind != "centred" else "mlp", network=network, sizes=(4, 2, 3, 6, 3))
    assert f.engine._context.network.couples_samples == (kind != "mlp")
    f.engine.train(own(*range(5)), f.training(lr=0.1))
    naive.check(f, functools.partial(torch.optim.SGD, lr=0.1))


@pytest.mark.parametrize("images", ["equal", "not numbers"])
def test_interaction_is_detected_despite_uninformative_first_images(federation, naive, make_data, images):
    data = make_data((9, 4, 7), (1, 6, 6))
    data.images[data.train[0][:3]] = float("nan") if images == "not numbers" else 0.0
    f = federation("batchnorm", data=data, sizes=None, batch_size=4 if images == "equal" else 6)
    f.engine.train(own(1, 2), f.training(lr=0.1))
    naive.check(f, functools.partial(torch.optim.SGD, lr=0.1), (1, 2), batch=4 if images == "equal" else 6)


class Hidden(nn.Module):
    """Samples meet in training, as `function` says; nothing of it shows in small batches."""

    def __init__(self, function):
        super().__init__()
        self.function, self.body, self.head = function, nn.Linear(6, 5), nn.Linear(5, 3)

    def forward(self, x):
        x = torch.tanh(self.body(x))
        return self.head(self.function(x) if self.training else x)


HIDDEN = {
    "half": lambda x: x - x[: x.shape[0] // 2].mean(0),
    "from the fourth on": lambda x: x - x[3:].sum(0) / 8,
    "one": lambda x: x - x[7:8].sum(0),
    "neighbours": lambda x: x + 0.1 * torch.cat([x[:6], x[5:-1]]),
}


@pytest.mark.parametrize("name", HIDDEN)
def test_interaction_in_whole_batches_only_is_detected(federation, naive, name):
    torch.manual_seed(0)
    network = Hidden(HIDDEN[name])
    f = federation(network=network, sizes=(24, 8, 19, 31), batch_size=8)
    assert f.engine._context.network.couples_samples
    f.engine.train(own(*range(4)), f.training(lr=0.1))
    naive.check(f, functools.partial(torch.optim.SGD, lr=0.1), batch=8)


# --- trials that are about themselves ---------------------------------------------------------------------------------
class OwnPrecision(nn.Module):
    """Computes in float32 with a constant that is no buffer."""

    def __init__(self, converts):
        super().__init__()
        self.converts, self.head, self.mix = converts, nn.Linear(6, 3), 0.5 * torch.eye(6).roll(1, 0)

    def forward(self, x):
        if self.converts:
            return self.head((x.float() @ self.mix).to(x.dtype))
        return self.head(x @ self.mix)


@pytest.mark.parametrize(
    ("converts", "note"),
    [
        (False, r"in float32 only, for in float64 the plain network fails \(.*\)"),
        (True, "up to rounding only, .*float32"),
    ],
    ids=["fails", "converts"],
)
def test_networks_without_float64_are_tried_in_the_runs_precision(federation, converts, note):
    torch.manual_seed(0)
    network = OwnPrecision(converts)
    f = federation(network=network, dtype=torch.float32, engine=functools.partial(make_engine, "auto"))
    assert type(f.engine) is StackedEngine
    assert re.fullmatch(note, f.engine.details["trial"].split(" somewhere")[0])


def test_failure_in_every_precision_selects_the_loop_engine(federation):
    torch.manual_seed(0)
    network = REFUSED["packed sequences"][0]()
    with pytest.raises(CannotStack, match="it packs sequences"):
        federation(network=network, dtype=torch.float32)


def test_nonfinite_scores_do_not_select_the_loop_engine(federation):
    torch.manual_seed(0)
    f = federation(network=Forward(lambda self, x: torch.log(-x.abs() - 1)))
    assert not f.engine.train(own(0, 1), f.training()).finite.any()


# --- rewriting --------------------------------------------------------------------------------------------------------
def behind(function, **options):
    """A convolution, then `function` of its output and of the input."""

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm = nn.Conv2d(2, 3, 3, padding=1), nn.BatchNorm2d(3)
            self.relu, self.pool = nn.ReLU(**options), nn.MaxPool2d(2)
            self.linear = nn.Linear(6, 6)

        def forward(self, x):
            return function(self, x)

    return Network


def twice_read(self, x):
    y = self.conv(x)
    return self.pool(self.relu(y)) + F.max_pool2d(y, 2)


def twice_read_behind(self, x):
    y = self.relu(self.conv(x))
    return self.pool(y) + F.avg_pool2d(y, 2)


REWRITTEN = {
    "relu, pool": lambda self, x: self.pool(self.relu(self.conv(x))),
    "pool, relu": lambda self, x: self.relu(self.pool(self.conv(x))),
    "functions": lambda self, x: F.max_pool2d(F.relu(self.conv(x)), 3, 2, 1, ceil_mode=True),
    "torch.relu": lambda self, x: self.pool(torch.relu(self.conv(x))),
    "relu, pool, relu, pool": lambda self, x: self.pool(self.relu(self.pool(self.relu(self.conv(x))))),
    "relu of the input": lambda self, x: self.conv(self.pool(self.relu(x))),
    "relu's input read twice": twice_read,
    "relu read twice": twice_read_behind,
    "relu of a sum": lambda self, x: self.relu(self.conv(x) + self.conv(-x)),
    "relu of a norm": lambda self, x: self.relu(self.norm(self.conv(x))),
    "relu of a linear layer": lambda self, x: torch.relu(self.linear(x)),
    "relu of a tanh, whose backward reads its output": lambda self, x: self.relu(torch.tanh(self.conv(x))),
    "relu of a softplus": lambda self, x: torch.relu(torch.exp(self.conv(x)) - 1),
    "relu of a relu": lambda self, x: self.relu(self.relu(self.conv(x))),
    "average pooling": lambda self, x: F.avg_pool2d(self.relu(self.conv(x)), 2),
}


@pytest.mark.parametrize("name", REWRITTEN)
def test_rewriting_changes_nothing(compare, name):
    torch.manual_seed(0)
    inputs = torch.randn(3, 5, 2, 6, 6, dtype=torch.float64)
    compare(behind(REWRITTEN[name])(), inputs)
    compare(behind(REWRITTEN[name])(), inputs, training=False)
    compare(behind(REWRITTEN[name])(), inputs, sizes=None if "norm" in name else [5, 2, 4])


@pytest.mark.parametrize("name", ["relu, pool", "relu of a norm", "relu of a sum"])
def test_relus_in_place_change_nothing(compare, name):
    torch.manual_seed(0)
    compare(behind(REWRITTEN[name], inplace=True)(), torch.randn(3, 5, 2, 6, 6, dtype=torch.float64))


def test_a_relu_works_on_the_pooled_image():
    network = StackedNetwork(nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()))
    assert [str(node.target) for node in network._graphs[True].nodes][1:-1] == ["0", "2", "1", "3"]


def test_a_negative_zero_and_equal_numbers_pool_alike(compare):
    """Ties: the gradient goes where the plain network sends it."""
    inputs = torch.tensor([0.0, -0.0, 1.0, 1.0, -1.0, -1.0, 2.0, 0.0], dtype=torch.float64).repeat(3 * 2 * 2 * 9)
    network = nn.Sequential(nn.Identity(), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(2, 2, 1))
    compare(network, inputs.view(3, 2, 2, 36, -1)[..., :2, :])


# --- whole runs of layers without a rule ------------------------------------------------------------------------------
class Attention(nn.Module):
    """Self-attention over six numbers, whose fast path of torch is for evaluation."""

    def __init__(self):
        super().__init__()
        self.embed, self.attend = nn.Linear(1, 4), nn.MultiheadAttention(4, 2, batch_first=True)
        self.head = nn.Linear(24, 3)

    def forward(self, x):
        x = self.embed(x.unsqueeze(-1))
        return self.head(self.attend(x, x, x)[0].flatten(1))


class Encoder(nn.Module):
    """A layer of torch that has layers itself."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(1, 4)
        self.encode = nn.TransformerEncoderLayer(4, 2, 5, dropout=0.0, batch_first=True)
        self.head = nn.Linear(24, 3)

    def forward(self, x):
        return self.head(self.encode(self.embed(x.unsqueeze(-1))).flatten(1))


OTHERS = {
    "attention": Attention,
    "encoder": Encoder,
    "prelu": lambda: nn.Sequential(nn.Linear(6, 4), nn.PReLU(4), nn.RMSNorm(4), nn.Linear(4, 3)),
}


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
@pytest.mark.parametrize("name", OTHERS)
def test_layers_without_a_rule_agree_with_the_loop_engine(federation, name):
    torch.manual_seed(0)
    network = OTHERS[name]()
    found = []
    for engine in (functools.partial(make_engine, "auto"), LoopEngine):
        f = federation(network=network, engine=engine)
        if engine is not LoopEngine:
            assert type(f.engine) is StackedEngine
        scores = [f.engine.evaluate(own(0, 1, 2), "val").losses]
        f.engine.train(own(0, 1, 2), f.training())
        scores.append(f.engine.evaluate(References.rows("trained", torch.arange(3)), "test").losses)
        found.append((f.bank.rows("trained").clone(), *scores))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


class Slow(nn.PReLU):
    """A layer that is looked at from outside only, and that gives way to other threads while it works."""

    def forward(self, x):
        time.sleep(1e-3)
        return super().forward(x)


def test_layers_without_a_rule_are_thread_safe(federation, monkeypatch):
    """Its parameters are put into the layer for as long as a call lasts."""
    monkeypatch.setattr(Slow, "__module__", "torch.nn.modules.slow")  # not for longer: parsers import what they see
    monkeypatch.setattr("dfl_lightning.engines.stacked.cost.OVERHEAD", 1e-9)  # several cohorts of small clients
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(6, 8), nn.GLU(), Slow(4), nn.Linear(4, 3))
    found = []
    for count in (1, 4):
        with threads(count):
            f = federation(network=network, sizes=(8,) * 24)
            assert len(f.engine.cohorts) >= 4
            f.engine.train(own(*range(24)), f.training(epochs=2))
            scores = f.engine.evaluate(References.rows("trained", torch.arange(24)), "test")
            found.append((f.bank.rows("trained").clone(), scores.losses))
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)
