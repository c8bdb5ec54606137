"""Every network of the library with every kind of optimizer, against plain modules: float64, 1e-10."""

import functools
from types import SimpleNamespace

import pytest
import torch
from banks import own
from threads import threads
from torch import nn

from dfl_lightning.bank.references import References
from dfl_lightning.engines.loop.loop_engine import LoopEngine
from dfl_lightning.engines.stacked import StackedEngine
from dfl_lightning.models import (
    CNN4,
    FEMNISTCNN,
    MLP,
    MNISTCNN,
    PENSCNN,
    TCN,
    CharLSTM,
    CharTransformer,
    LeNet,
    ResNet18,
    Tabular,
    resnet,
)
from dfl_lightning.utils.errors import UserError
from dfl_lightning.utils.randomness.random_streams import stream_seed
from tests.helpers.orders import drawn_order

OPTIMIZERS = {
    "sgd": (torch.optim.SGD, {}),
    "momentum": (torch.optim.SGD, {"momentum": 0.9}),
    "nesterov": (torch.optim.SGD, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    "adam": (torch.optim.Adam, {}),
    "adamw": (torch.optim.AdamW, {"weight_decay": 0.1}),
    "rmsprop": (torch.optim.RMSprop, {"momentum": 0.5, "eps": 1e-6}),
}
"""With RMSprop's own eps of 1e-8 a plain ResNet-18 with batch norms moves by 3e-11 when the samples of its batches
change places, and more with batches of two: what it divides by the size of a gradient near 0 is rounding."""
RATES = {"sgd": 0.1, "momentum": 0.05, "nesterov": 0.05}
NARROW = ((64, 1), (64, 2), (64, 2), (64, 1))  # ResNet-18's wiring with a twentieth of its parameters, for speed
NETWORKS = {
    "MLP": (functools.partial(MLP, hidden=[5, 4]), (1, 4, 4)),
    "LeNet": (LeNet, (3, 16, 16)),
    "MNISTCNN": (MNISTCNN, (1, 16, 16)),
    "CNN4": (CNN4, (1, 4, 4)),
    "PENSCNN": (PENSCNN, (3, 22, 22)),
    "FEMNISTCNN": (FEMNISTCNN, (1, 16, 16)),
    "ResNet18": (functools.partial(ResNet18, groups=4), (3, 8, 8)),
    "TCN": (functools.partial(TCN, [3, 3, 4], 2), (2, 9)),
    "ResNet18 batch": (functools.partial(ResNet18, norm="batch"), (3, 8, 8)),
}
"""Norms of the last stage see more than two numbers: of two, only the sign is left, and the gradient explodes.

All batch norms follow convolutions without a bias. The gradient of such a bias would be rounding errors only. Adam and
RMSprop divide by its size and would make whole steps of them, so no two orders of summation would agree."""


def close(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


def build(name, seed=1):
    make, shape = NETWORKS[name]
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return make(input_shape=shape, num_classes=3), shape


def check(federation, naive, make_data, name, optimizer):
    kind, options = OPTIMIZERS[optimizer]
    lr = RATES.get(optimizer, 1e-3)
    network, shape = build(name)
    sizes = (7, 2, 8)  # two batches, one short one, two: 4 + 3, 2, 4 + 4
    f = federation(network=network, data=make_data(sizes, shape), optimizer=functools.partial(kind, lr=77.0, **options))
    before = f.bank.rows("models")
    for i in range(3):
        before[i] = naive.row(build(name, seed=i)[0], f.dtype)
    result = f.engine.train(own(0, 1, 2), f.training(lr=lr))
    losses = naive.check(f, functools.partial(kind, lr=lr, **options))
    assert result.losses.tolist() == pytest.approx(losses, rel=1e-9)
    assert result.samples.tolist() == [14, 4, 16]


ONCE = [
    *[("MLP", optimizer) for optimizer in OPTIMIZERS],
    *[("LeNet", optimizer) for optimizer in ("momentum", "adamw")],
    *[("MNISTCNN", optimizer) for optimizer in ("nesterov", "rmsprop")],
    ("CNN4", "adamw"),
    ("PENSCNN", "nesterov"),
    ("TCN", "momentum"),
    ("FEMNISTCNN", "rmsprop"),
    ("ResNet18", "adam"),
    ("ResNet18 batch", "sgd"),
]
"""All optimizers once: their arithmetic is entry by entry, whatever the network; the rest is slow."""
PAIRS = [
    pytest.param(name, optimizer, marks=[pytest.mark.slow] * ((name, optimizer) not in ONCE))
    for name in NETWORKS
    for optimizer in OPTIMIZERS
]


@pytest.mark.parametrize(("name", "optimizer"), PAIRS)
def test_clients_of_a_network_train_as_plain_modules_would(
    federation, naive, make_data, one_cohort, monkeypatch, name, optimizer
):
    monkeypatch.setattr(resnet, "_STAGES", NARROW)
    check(federation, naive, make_data, name, optimizer)


def test_every_network_of_the_library_is_here():
    assert {name for name, _ in ONCE} == set(NETWORKS)
    assert {optimizer for _, optimizer in ONCE} == set(OPTIMIZERS)
    from dfl_lightning import models

    networks = {getattr(models, name) for name in models.__all__}
    known = {MLP, LeNet, MNISTCNN, CNN4, PENSCNN, FEMNISTCNN, ResNet18, TCN, CharLSTM, CharTransformer, Tabular}
    known |= {models.Network, models.HuggingFace, models.LoRA}  # with tests of their own
    assert {kind for kind in networks if isinstance(kind, type) and issubclass(kind, models.Network)} <= known


@pytest.mark.parametrize("clipping", [{"clip_norm": 0.2}, {"clip_value": 0.01}], ids=str)
def test_each_client_of_a_convolutional_network_is_clipped_by_itself(
    federation, naive, make_data, one_cohort, clipping
):
    network, shape = build("LeNet")
    f = federation(network=network, data=make_data((7, 2, 8), shape), **clipping)
    f.engine.train(own(2, 0, 1), f.training(lr=0.3))
    naive.check(f, functools.partial(torch.optim.SGD, lr=0.3), **clipping)


@pytest.mark.parametrize("kind", ["batchnorm", "dropout"])
@pytest.mark.parametrize("personal", ["head", "body"])
def test_phases_train_personal_columns_then_shared_ones(federation, naive, make_network, make_data, kind, personal):
    """Each phase with its own optimizer on its own part, the other part's buffers put back at its end."""
    network = make_network(kind)
    names = [name for name, _ in network.named_parameters()]
    head = [name for name in names if name.startswith(f"{len(network) - 1}.")]
    shared = [name for name in names if (name in head) == (personal == "body")]
    if kind == "batchnorm" and personal == "head":
        shared.append("1.*")
    adam = functools.partial(torch.optim.Adam, lr=0.01)
    f = federation(kind, network=network, sizes=(10, 4, 14), shared=shared, optimizer=adam)
    before = f.bank.rows("models").clone()
    f.engine.train(own(0, 1, 2), f.training(epochs=2, lr=0.01))
    for i in range(3):
        module = naive.module(network, before[i])
        for phase, mine in enumerate((lambda name: name not in shared, lambda name: name in shared)):
            trained = [p for name, p in module.named_parameters() if mine(name)]
            kept = {name: b.clone() for name, b in module.named_buffers()}
            drawn = train_part(module, f.data, i, adam(trained), naive, first=2 * phase, epochs=2)
            assert drawn == 2 * -(-len(f.data.train[i]) // 4)
            buffers_are_shared = personal == "head"
            for name, b in module.named_buffers():
                if b.is_floating_point() and buffers_are_shared != bool(phase):
                    b.data.copy_(kept[name])
        for entry in f.layout.entries:
            if entry.dtype.is_floating_point:
                found = f.bank.rows("trained")[i, entry.start : entry.stop]
                tensor = dict([*module.named_parameters(), *module.named_buffers()])[entry.name]
                close(found, tensor.detach().reshape(-1))
    loop = federation(kind, network=network, sizes=(10, 4, 14), shared=shared, optimizer=adam, engine=LoopEngine)
    loop.engine.train(own(0, 1, 2), loop.training(epochs=2, lr=0.01))
    close(f.bank.rows("trained"), loop.bank.rows("trained"))


def train_part(module, data, owner, optimizer, naive, first, epochs):
    """Plain epochs `first` to `first + epochs`; only what the optimizer holds moves. Returns the number of steps."""
    box = {}
    for child in module.modules():
        if isinstance(child, nn.Dropout | nn.Dropout2d):
            child.forward = naive.dropout(child.p, isinstance(child, nn.Dropout2d), box).forward
    module.train()
    samples, steps = data.train[owner], 0
    for epoch in range(first, first + epochs):
        order = drawn_order(len(samples), naive.seed, "local", 3, owner, epoch)
        for step, part in enumerate(samples[order].split(4)):
            box["seed"] = stream_seed(naive.seed, "local dropout layers", 3, owner, epoch, step)
            box["call"] = 0
            x, y = naive.inputs(data, part, torch.float64)
            optimizer.zero_grad()
            nn.functional.cross_entropy(module(x), y).backward()
            optimizer.step()
            steps += 1
    return steps


# --- bits -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", ["mlp", "batchnorm", "dropout"])
def test_no_bit_depends_on_the_number_of_threads(federation, monkeypatch, kind):
    monkeypatch.setattr("dfl_lightning.engines.stacked.cost.OVERHEAD", 1e-9)  # several cohorts of small clients
    found = []
    sizes = tuple(4 + 2 * (i % 7) for i in range(21))
    for count in (1, 2, 3):
        with threads(count):
            momentum = functools.partial(torch.optim.SGD, lr=1.0, momentum=0.9)
            f = federation(kind, sizes=sizes, dtype=torch.float32, optimizer=momentum)
            assert len(f.engine.cohorts) >= 4
            assert f.engine.threads == count
            result = f.engine.train(own(*range(21)), f.training())
            gradients = f.engine.gradients(own(*range(21)), f.training())
            pairs = torch.cartesian_prod(torch.arange(21), torch.arange(21))[::5]
            scores = f.engine.evaluate(References.rows("trained", pairs[:, 0], owners=pairs[:, 1]), "test")
            whole = f.engine.evaluate(References.rows("models", torch.arange(21), owners=torch.full((21,), -1)), "test")
            found.append((f.bank.rows("trained").clone(), result.losses, gradients, scores.losses, whole.losses))
    for other in found[1:]:
        assert all(torch.equal(one, two) for one, two in zip(found[0], other, strict=True))


# --- isolation --------------------------------------------------------------------------------------------------------
class Words(nn.Module):
    """Looks words up that its inputs name."""

    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(5, 4), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.table(x.long()).mean(1))


@pytest.mark.parametrize("word", [5.0, -1.0])
@pytest.mark.parametrize("engine", [LoopEngine, StackedEngine], ids=lambda engine: engine.name)
def test_word_indices_beyond_the_table_are_refused(federation, make_data, one_cohort, word):
    torch.manual_seed(0)
    data = make_data((8, 8, 8))
    data.images = (torch.arange(data.images.numel()) % 5 * 2).view(-1, 6) - 0.5  # 0.5 x + 0.25 is 0 to 4
    f = federation(network=Words(), data=data)
    data.images[data.train[1][5]] = 2 * word - 0.5
    with pytest.raises(UserError, match=r"model.network Words fails on a batch of .*out of range"):
        federation(network=Words(), data=data)
    with pytest.raises(IndexError, match="out of range"):
        f.engine.train(own(0, 1, 2), f.training())


# --- dropout layers ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("default", [torch.float32, torch.float64], ids=str)
def test_masks_are_those_of_the_loop_engine(federation, make_network, one_cohort, default):
    """Whatever torch's default type is while a run lasts (`precision: 64-true` changes it)."""
    network = make_network("dropout")
    rows = []
    torch.set_default_dtype(default)
    try:
        for engine in (LoopEngine, StackedEngine):
            f = federation("dropout", network=network, sizes=(7, 2, 8), engine=engine)
            f.engine.train(own(0, 1, 2), f.training())
            rows.append(f.bank.rows("trained").clone())
    finally:
        torch.set_default_dtype(torch.float32)
    close(*rows)


def test_augmentation_does_not_draw_for_padding(federation, make_data, one_cohort):
    rows = []
    for engine in (LoopEngine, StackedEngine):
        data = make_data((7, 2, 9))
        data.augment = SimpleNamespace(
            draw=lambda size, generator: torch.rand(size, 1, generator=generator),
            apply=lambda x, draws: x * draws.to(x),
        )
        f = federation(data=data, engine=engine)
        f.engine.train(own(0, 1, 2), f.training())
        rows.append(f.bank.rows("trained").clone())
    close(*rows)


@pytest.mark.parametrize("batches", [None, 1, 2])
def test_gradients_weigh_samples_equally(federation, naive, make_data, one_cohort, batches):
    network, shape = build("LeNet")
    f = federation(network=network, data=make_data((7, 2, 10), shape))
    found = f.engine.gradients(own(0, 1, 2), f.training(gradients=True, batches=batches))
    for i in range(3):
        module = naive.module(network, f.bank.rows("models")[i])
        samples = f.data.train[i]
        order = drawn_order(len(samples), naive.seed, "local", 3, i, 0)
        used = samples[order][: None if batches is None else 4 * batches]
        x, y = naive.inputs(f.data, used, f.dtype)
        nn.functional.cross_entropy(module(x), y).backward()
        close(found[i], torch.cat([p.grad.reshape(-1) for p in module.parameters()]))
