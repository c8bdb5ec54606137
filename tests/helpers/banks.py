"""Small clients, banks around them, and a naive federation of plain modules to compare with."""

import copy
import functools
import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from dfl_lightning.bank.bank import Bank
from dfl_lightning.bank.layout import Layout
from dfl_lightning.bank.references import References
from dfl_lightning.data import ClientData
from dfl_lightning.engines.config import EngineConfig
from dfl_lightning.engines.engine import Engine
from dfl_lightning.engines.jobs import Training
from dfl_lightning.engines.loop.loop_engine import LoopEngine
from dfl_lightning.engines.stacked import StackedEngine
from dfl_lightning.objectives import Duration, Plain
from dfl_lightning.utils.randomness.random_streams import stream_seed
from tests.helpers.orders import drawn_order

SEED = 5


class DrawnDropout(nn.Module):
    """A dropout layer of the naive federation: zeroes what is drawn below p for the seed in `box`."""

    def __init__(self, p, channels, box):
        super().__init__()
        self.p, self.channels, self.box = p, channels, box

    def forward(self, x):
        if not self.training:
            return x
        shape = (*x.shape[:2], *[1] * (x.dim() - 2)) if self.channels else x.shape
        dropped = torch.tensor(_dropped(self.box["seed"], self.box["call"], math.prod(shape), self.p)).view(shape)
        self.box["call"] += 1
        return torch.where(dropped, torch.zeros(()).to(x), x / (1 - self.p))


def _dropped(seed, call, count, p):
    """Return for each entry whether a mask drops it, computed with 32-bit integers one by one."""
    start, stride = seed % 2**32, (seed // 2**31 | 1) % 2**32
    numbers = (_mix((position * stride + start + _mix(call + 1)) % 2**32) for position in range(count))
    return [number % 2**24 < round(p * 2**24) for number in numbers]


def _mix(word):
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B), (16, 1)):
        word = (word ^ word >> shift) * factor % 2**32
    return word


def _network(kind):
    with torch.random.fork_rng():
        torch.manual_seed(1)
        if kind == "mlp":
            return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
        if kind == "batchnorm":
            # No bias before a batch norm: its gradient is rounding errors only, and Adam makes a whole step of them.
            body = [nn.Conv2d(1, 3, 3, bias=False), nn.BatchNorm2d(3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
            return nn.Sequential(*body, nn.Linear(12, 3))
        assert kind == "dropout"
        return nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.Tanh(), nn.Dropout2d(0.4), nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 3)
        )


def _shape(kind):
    return (6,) if kind == "mlp" else (1, 6, 6)


def _data(sizes=(9, 4, 14), shape=(6,), others=5, classes=3):
    """Clients with `sizes` training, `others` validation and `others` test samples, and a global test set."""
    total = sum(sizes) + 2 * others * len(sizes) + 11
    g = torch.Generator().manual_seed(2)
    images = torch.randn(total, *shape, generator=g, dtype=torch.float64)
    labels = torch.randint(0, classes, (total,), generator=g)
    parts = torch.randperm(total, generator=g).split([*sizes, *[others] * (2 * len(sizes)), 11])
    m = len(sizes)
    return ClientData(
        images=images,
        labels=labels,
        train=parts[:m],
        val=parts[m : 2 * m],
        test=parts[2 * m : 3 * m],
        global_test=parts[-1],
        clusters=None,
        num_classes=classes,
        scale=torch.tensor(0.5),
        shift=torch.tensor(0.25),
    )


def in_rows(network):
    """The tensors of a network that clients have for themselves: trained parameters and buffers."""
    return [*(p for p in network.parameters() if p.requires_grad), *network.buffers()]


def _models(network, rows, dtype, layout):
    """A different model in each row: integers stay, everything else moves a little, variances up."""
    g = torch.Generator().manual_seed(3)
    made = []
    for _ in range(rows):
        parts = []
        tensors = {**dict(network.named_parameters()), **dict(network.named_buffers())}
        for t in (tensors[entry.name] for entry in layout.entries):
            noise = 0.1 * torch.rand(t.shape, generator=g, dtype=torch.float64)
            parts.append((t.detach().double() + noise * t.is_floating_point()).reshape(-1))
        made.append(torch.cat(parts).to(dtype))
    return torch.stack(made)


def make_federation(
    kind="mlp",
    network=None,
    sizes=(9, 4, 14),
    data=None,
    dtype=torch.float64,
    shared=("*",),
    servers=0,
    optimizer=None,
    objective=None,
    batch_size=4,
    sets=(),
    metrics=None,
    loss=None,
    engine=LoopEngine,
    device=None,
    constant=(),
    **config,
):
    network = network if network is not None else _network(kind)
    data = data if data is not None else _data(sizes, _shape(kind))
    layout = Layout(network, shared, constant)
    m = data.num_clients
    models = _models(network, m + servers, dtype, layout)
    objective = objective or Plain()
    further = {name: _models(network, m + servers, dtype, layout).flip(0) for name in sets}
    bank = Bank(layout, models, m, further, numbers=objective.numbers)
    if device is not None:
        bank.apply_to_rows(lambda rows: rows.to(device))
        data = data.to(device)
    optimizer = optimizer or functools.partial(torch.optim.SGD, lr=77.0)  # the round's learning rate takes its place
    made = engine(
        EngineConfig(
            network=network,
            optimizer=optimizer,
            loss=loss or nn.CrossEntropyLoss(),
            metrics=metrics or {},
            objective=objective,
            batch_size=batch_size,
            seed=SEED,
            dtype=dtype,
            **config,
        ),
        layout,
        data,
    )

    if isinstance(made, Engine):
        made.attach(bank)

    def training(epochs=2, round=3, lr=0.05, purpose="local", groups=None, **more):
        groups = ({"lr": lr},) if groups is None else groups
        return Training(purpose, round, objective.phases(layout, Duration(epochs), round), groups, **more)

    return SimpleNamespace(
        bank=bank, engine=made, network=network, data=data, layout=layout, training=training, dtype=dtype, m=m
    )


def _module(network, row):
    """A plain module with the numbers of a row."""
    module, at = copy.deepcopy(network).to(row.dtype), 0
    for t in in_rows(module):
        t.data.copy_(row[at : at + t.numel()].view_as(t))
        at += t.numel()
    assert at == len(row)
    return module


def _row(module, dtype):
    return torch.cat([t.detach().reshape(-1).to(dtype) for t in in_rows(module)])


def _inputs(data, indices, dtype):
    return data.images[indices].to(dtype) * 0.5 + 0.25, data.labels[indices]


def _train_alone(
    module,
    data,
    owner,
    make_optimizer,
    epochs,
    dtype,
    batch=4,
    round=3,
    purpose="local",
    clip_norm=None,
    clip_value=None,
):
    """A plain module, a plain optimizer, plain loops; only the named draws are the library's. Returns the mean loss."""
    box = {}
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Dropout | nn.Dropout2d):
                setattr(parent, name, DrawnDropout(child.p, isinstance(child, nn.Dropout2d), box))
    module.train()
    optimizer = make_optimizer([p for p in module.parameters() if p.requires_grad])
    samples, total, seen = data.train[owner], 0.0, 0
    for epoch in range(epochs):
        shuffled = samples[drawn_order(len(samples), SEED, purpose, round, owner, epoch)].tolist()
        for step, at in enumerate(range(0, len(shuffled), batch)):
            box["seed"], box["call"] = stream_seed(SEED, f"{purpose} dropout layers", round, owner, epoch, step), 0
            x, y = _inputs(data, torch.tensor(shuffled[at : at + batch]), dtype)
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(module(x), y)
            loss.backward()
            grads = [p.grad for p in module.parameters() if p.grad is not None]
            if clip_norm is not None:
                norm = sum(float((g**2).sum()) for g in grads) ** 0.5
                for g in grads:
                    g *= min(1.0, clip_norm / (norm + 1e-6))
            if clip_value is not None:
                for g in grads:
                    g.clamp_(-clip_value, clip_value)
            optimizer.step()
            total += float(loss.detach()) * len(y)
            seen += len(y)
    return total / seen


def _check_trained(f, optimizer, clients=None, epochs=2, tolerance=1e-10, **options):
    """Assert that rows `trained` are what plain training makes of `models`, and that they moved; the mean losses."""
    losses = []
    for i in range(f.m) if clients is None else clients:
        before, found = f.bank.rows("models")[i], f.bank.rows("trained")[i]
        module = _module(f.network, before)
        losses.append(_train_alone(module, f.data, i, optimizer, epochs, f.dtype, **options))
        torch.testing.assert_close(found, _row(module, f.dtype), rtol=tolerance, atol=tolerance)
        assert (found - before).abs().max() > 1e-4
    return losses


@pytest.fixture
def naive():
    """The naive federation: modules, rows, inputs and local training written out."""
    return SimpleNamespace(
        module=_module,
        row=_row,
        inputs=_inputs,
        train=_train_alone,
        check=_check_trained,
        dropout=DrawnDropout,
        seed=SEED,
    )


@pytest.fixture(params=[LoopEngine, StackedEngine], ids=lambda engine: engine.name)
def engine(request):
    """Each engine in turn."""
    return request.param


@pytest.fixture
def federation(engine):
    """Makes a bank with the engine around small clients."""
    return functools.partial(make_federation, engine=engine)


@pytest.fixture
def make_data():
    """Makes the data of small clients."""
    return _data


@pytest.fixture
def make_network():
    """Makes `mlp`, `batchnorm` or `dropout`."""
    return _network


def own(*owners):
    """Each of these clients with its own model."""
    return References.rows("models", torch.tensor(owners))


def trained_plainly(f, training, client, mean):
    """Two epochs of a client by torch alone, batches of 4, gradients clipped to 0.5: its row, and its mean loss."""
    model = _module(f.network, f.bank.rows("models")[client])
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.05), []
    draws, samples = training.draws(SEED), f.data.train[client]
    for epoch in range(2):
        for part in samples[draws.orders_of(client, epoch, 1, len(samples))[0]].split(4):
            x, y = f.data.batch(part, dtype=torch.float64)
            optimizer.zero_grad()
            value = mean(model(x), y)
            value.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            losses += [float(value.detach())] * len(part)
    return _row(model, torch.float64), sum(losses) / len(losses)
