"""Operations of DPFL's appendix G: closed forms of linear networks and LeNet, and the paper's sums by hand."""

import pytest
import torch
from torch import nn

from dfl_lightning.models import LeNet


@pytest.fixture(scope="module")
def script(load):
    return load("dpfl_flops")


def test_a_linear_network_has_its_closed_form(script):
    """A layer from a to b does 2 n a b; so do the gradients of its weights, and of its inputs in all but the first."""
    n, a, b, c = 7, 5, 11, 3
    forward, backward = script.passes(nn.Sequential(nn.Linear(a, b), nn.ReLU(), nn.Linear(b, c)), torch.ones(n, a))
    assert forward == 2 * n * (a * b + b * c)
    assert backward == 2 * n * (a * b + b * c) + 2 * n * b * c


def test_lenet_has_its_closed_form(script):
    conv1, conv2 = 2 * 28 * 28 * 6 * 3 * 25, 2 * 10 * 10 * 16 * 6 * 25
    connected = 2 * (400 * 120 + 120 * 84 + 84 * 10)
    forward, backward = script.passes(LeNet(input_shape=(3, 32, 32), num_classes=10), torch.zeros(1, 3, 32, 32))
    assert forward == conv1 + conv2 + connected == 1_303_440
    assert backward == 2 * forward - conv1


def test_sums_are_those_of_the_appendix(script):
    """With B_c = 3, F = 10, F + B = 30, E = 4, d = 7 and N = 20."""
    dpfl = script.of_dpfl(candidates=3, mixed=3, evaluated=10, steps=4, step=30, size=7)
    assert (dpfl.choice, dpfl.training, dpfl.average, dpfl.total) == (60, 120, 21, 201)
    first = script.of_dpfl(candidates=19, mixed=3, evaluated=10, steps=8, step=30, size=7)
    assert (first.choice, first.training, first.average) == (380, 240, 21)
    assert script.of_average(1, 20, 4, 30, 7).total == 120 + 140
    assert script.of_average(2, 20, 4, 30, 7).total == 240 + 140


def test_the_table_has_multiples_of_fedavg(script):
    words = script.parser().parse_args(["--clients", "20", "--epochs", "2", "--first", "4", "--budgets", "3"])
    lines = script.table(words, 10_000_000, 20_000_000, 50_000_000, 2, 7_000_000)
    # FedAvg: 4 steps of 30 and 20 models of 7; DPFL: 6 evaluations of 10, or of 50, the same steps, 3 models of 7;
    # in round 0 38 evaluations, 8 steps, 19 models.
    assert lines[2:6] == [
        "| FedAvg | 0.0 | 120.0 | 140.0 | 260.0 | 1.00 |",
        "| Ditto, APFL | 0.0 | 240.0 | 140.0 | 380.0 | 1.46 |",
        "| DPFL, B_c = 3, F of a batch | 60.0 | 120.0 | 21.0 | 201.0 | 0.77 |",
        "| DPFL, round 0, F of a batch | 380.0 | 240.0 | 133.0 | 753.0 | 2.90 |",
    ]
    assert lines[6] == "| DPFL, B_c = 3, F of all validation images | 300.0 | 120.0 | 21.0 | 441.0 | 1.70 |"
