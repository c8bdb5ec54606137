"""What is tried out on a device before the run, where it cannot do everything that a CPU can."""

import functools
import re

import pytest
import torch
from pretended import DEVICE, count, device, everything_on
from torch import nn

from dfl_lightning.engines.factory import make_engine
from dfl_lightning.engines.loop_engine import LoopEngine
from dfl_lightning.engines.stacked import StackedEngine
from dfl_lightning.report.banner import notes

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


def test_a_layer_without_float64_on_the_device_is_tried_out_in_float32_and_named(make_data, federation, unable):
    unable(double_convolution)
    engine = cnn(make_data, federation).engine
    assert type(engine) is StackedEngine
    assert engine.details["trial"] == (
        "in float32 only, for in float64 the plain network fails in layer '0' (Conv2d) "
        '("convolution" not implemented here)'
    )


def test_a_layer_that_the_device_cannot_do_for_several_clients_is_named_as_the_reason(make_data, federation, unable):
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
def test_the_banner_says_so(small_run, unable, refused, note):
    unable(refused)
    run = small_run(rounds=0, module={"network": network(72, 10)})
    with everything_on(DEVICE):
        run.trainer.prepare(run.module, run.data)
        assert any(re.match(note, line) for line in notes(run.trainer, run.module))


def test_the_trial_in_float32_is_no_trial_of_tensorfloat32(make_data, federation, unable):
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
