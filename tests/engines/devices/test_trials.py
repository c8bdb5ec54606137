"""Trials before the run, on a device that lacks some operations of a CPU."""

import dataclasses
import functools
import re

import pytest
import torch
from pretended import ASSERTED, DEVICE, count, device, everything_on
from torch import nn

from dfl_lightning.engines.factory import make_engine
from dfl_lightning.engines.loop.loop_engine import LoopEngine
from dfl_lightning.engines.stacked import StackedEngine
from dfl_lightning.terminal.banner import notes

pytestmark = pytest.mark.cpu_bits  # one side of the comparison is the CPU


@pytest.fixture
def engine():
    """Given where a federation is made."""
    return StackedEngine


@pytest.fixture
def unable(monkeypatch):
    """Let the device be unable to do what a function of (operation, arguments) says."""
    compute = device.compute

    def forbid(refused):
        def some(func, args, kwargs):
            name = func._schema.name.removeprefix("aten::")
            if device.sides(args, kwargs)[0] and refused(name, args):
                raise RuntimeError(f'"{name}" not implemented here')
            return compute(func, args, kwargs)

        for module in (device, count):  # without a mode that counts, and with it
            monkeypatch.setattr(module, "compute", some)

    return forbid


def double_convolution(name, args):
    return name == "convolution" and args[0].dtype == torch.float64


def grouped_convolution(name, args):
    return name == "convolution" and args[8] > 1


def network(features, classes):
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(features, classes))


def cnn(make_data, federation):
    data = make_data((6, 5), shape=(1, 6, 6)).to(DEVICE)
    return federation(
        network=network(32, 3), data=data, dtype=torch.float32, engine=functools.partial(make_engine, engine)
    )


def test_layers_without_float64_are_tried_in_float32_and_named(make_data, federation, unable):
    unable(double_convolution)
    engine = cnn(make_data, federation).engine
    assert type(engine) is StackedEngine
    assert engine.details["trial"] == (
        "in float32 only, for in float64 the plain network fails in layer '0' (Conv2d) "
        '("convolution" not implemented here)'
    )


def test_layers_that_fail_for_several_clients_are_named(make_data, federation, unable):
    unable(grouped_convolution)
    engine = cnn(make_data, federation).engine
    assert type(engine) is LoopEngine
    assert engine.reason == (
        "Sequential cannot be stacked: layer '0' (Conv2d) fails for several clients at once "
        '("convolution" not implemented here)'
    )


@pytest.mark.parametrize(
    ("refused", "note"),
    [
        (double_convolution, r"stacked clients were compared with plain networks in float32 only, for in float64"),
        (grouped_convolution, r"Sequential cannot be stacked: layer '[\w.]+' \(Conv2d\) fails .*; clients train one"),
    ],
    ids=["float64", "groups"],
)  # fmt: skip
def test_the_banner_names_what_the_device_lacks(small_run, unable, refused, note):
    unable(refused)
    run = small_run(rounds=0, module={"network": network(72, 10)})
    with everything_on(DEVICE):
        run.trainer.prepare(run.module, run.data)
        assert any(re.match(note, line) for line in notes(run.trainer, run.module))


def test_the_trial_in_float32_does_not_use_tensorfloat32(make_data, federation, unable):
    allowed = set()

    def watched(name, args):
        if name == "convolution" and args[0].dtype == torch.float32 and args[8] > 1:
            allowed.add(torch.backends.cudnn.allow_tf32)
        return double_convolution(name, args)

    unable(watched)
    before, torch.backends.cudnn.allow_tf32 = torch.backends.cudnn.allow_tf32, True
    try:
        cnn(make_data, federation)
    finally:
        torch.backends.cudnn.allow_tf32 = before
    assert False in allowed


# --- inputs beyond the range of the data ------------------------------------------------------------------------------
class Codes(nn.Module):
    """The first column is one of four categories."""

    def __init__(self, classes):
        super().__init__()
        self.embed, self.norm, self.head = nn.Embedding(4, 3), nn.BatchNorm1d(7), nn.Linear(7, classes)

    def forward(self, x):
        return self.head(self.norm(torch.cat([self.embed(x[:, 0].long()), x[:, 1:]], 1)))


class Bins(nn.Module):
    """Each number falls into one of ten bins between 0 and 1; nothing looks after those beyond."""

    def __init__(self, classes):
        super().__init__()
        self.table, self.head = nn.Parameter(torch.randn(10, 2)), nn.Linear(10, classes)

    def forward(self, x):
        return self.head(self.table[(x * 10).long()].flatten(1))


class Largest(nn.Module):
    """Samples meet where one of them is larger than any of the data."""

    def __init__(self, classes):
        super().__init__()
        self.head = nn.Linear(5, classes)

    def forward(self, x):
        return self.head(x / x.max().clamp(min=1.0))


@pytest.mark.parametrize("kind", [Codes, Bins, Largest])
def test_trials_on_a_gpu_use_values_of_the_data_only(make_data, federation, kind):
    """Exaggerated inputs are for the CPU; what is found out is the same."""
    data = make_data((12, 8), shape=(5,))
    values = torch.rand(data.images.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    if kind is Codes:
        values[:, 0] = data.labels + 1
    data = dataclasses.replace(data, images=values, scale=torch.tensor(1.0), shift=torch.tensor(0.0))
    ASSERTED.clear()
    engines = []
    for place in ("cpu", DEVICE):
        torch.manual_seed(0)
        chosen = functools.partial(make_engine, "auto")
        engines.append(federation(network=kind(3), data=data.to(place), engine=chosen).engine)
    here, there = engines
    assert not ASSERTED
    assert type(there) is type(here)
    assert there.details.get("evaluation") == here.details.get("evaluation")
    if kind is Largest:
        assert "interact" in there.details["evaluation"]
