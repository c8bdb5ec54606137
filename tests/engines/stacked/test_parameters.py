"""Rows to parameters and back."""

import pytest
import torch
from torch import nn

from dfl_lightning.bank.layout import Layout
from dfl_lightning.engines.stacked.parameters import Staging, memory, row_of, unpack


class Network(nn.Module):
    """Parameters of every dimension, a floating and an integer buffer."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.zeros(()))
        self.conv = nn.Conv2d(2, 3, (2, 4))
        self.pixel = nn.Conv2d(1, 1, 1)
        self.norm = nn.BatchNorm2d(3)
        self.solid = nn.Conv3d(2, 2, 2)
        self.linear = nn.Linear(4, 2)
        self.register_buffer("mask", torch.tensor([True, False]))

    def forward(self, x):
        return x


def read(rows):
    """Columns of rows, as a bank reads them."""
    return lambda start, stop: rows[:, start:stop].clone()


@pytest.fixture
def layout():
    return Layout(Network())


def rows_of(layout, clients=3):
    """Different numbers everywhere; whole ones, so that integer buffers keep theirs; a mask is 0 or 1."""
    rows = torch.arange(clients * layout.width, dtype=torch.float64).view(clients, -1)
    for entry in layout.entries:
        if entry.dtype is torch.bool:
            rows[:, entry.start : entry.stop] %= 2
    return rows


@pytest.mark.parametrize("owners", [[4, 0, 2], [1, 2, 3], [3, 2, 1]])
def test_models_survive_stacking_and_unstacking(layout, owners):
    rows = rows_of(layout)
    staging = Staging(layout, read(rows))
    target = torch.full((5, layout.width), -1.0, dtype=torch.float64)
    staging.copy_into(target, torch.tensor(owners))
    assert torch.equal(target[owners], rows)
    assert (target[sorted({*range(5)} - {*owners})] == -1).all()


def test_tensors_are_those_of_the_plain_network(layout):
    rows = rows_of(layout)
    staging = Staging(layout, read(rows))
    for i in range(3):
        for name, value in layout.state_dict(rows[i]).items():
            assert torch.equal(staging.tensors[name][i].double(), value.double()), name
            assert staging.tensors[name].shape == (3, *value.shape)
    types = {name: tensor.dtype for name, tensor in staging.tensors.items()}
    assert types["norm.num_batches_tracked"] is torch.int64
    assert types["mask"] is torch.bool
    assert types["conv.weight"] is torch.float64


def test_parameters_come_in_the_networks_order_without_buffers(layout):
    staging = Staging(layout, read(rows_of(layout)))
    names = [name for name, _ in Network().named_parameters()]
    for tensor, name in zip(staging.parameters(), names, strict=True):
        assert tensor is staging.tensors[name]
    for one, other in zip(unpack(layout, read(rows_of(layout))), staging.parameters(), strict=True):
        assert torch.equal(one, other)
        assert one.stride() == other.stride()


def test_counts_are_rounded_after_an_average(layout):
    rows = torch.full((1, layout.width), 6.9999)
    assert int(Staging(layout, read(rows)).tensors["norm.num_batches_tracked"]) == 7


def test_convolutions_lie_channels_last_and_everything_in_one_piece(layout):
    staging = Staging(layout, read(rows_of(layout)))
    for name, tensor in staging.tensors.items():
        assert memory(tensor).is_contiguous(), name
    weight = staging.tensors["conv.weight"]
    assert weight.shape == (3, 3, 2, 2, 4)
    assert weight.stride() == (48, 16, 1, 8, 2)
    assert memory(weight).shape == (3, 3, 2, 4, 2)
    assert memory(staging.tensors["solid.weight"]) is staging.tensors["solid.weight"]


def test_a_prefix_of_the_clients_is_a_contiguous_view(layout):
    staging = Staging(layout, read(rows_of(layout)))
    for tensor in staging.tensors.values():
        assert memory(tensor[:2]).is_contiguous()
        assert tensor[:2].data_ptr() == tensor.data_ptr()


def test_gradients_become_rows_with_zeros_for_buffers(layout):
    rows = rows_of(layout)
    found = row_of(layout, Staging(layout, read(rows)).parameters())
    for entry in layout.entries:
        part, expected = found[:, entry.start : entry.stop], rows[:, entry.start : entry.stop]
        assert torch.equal(part, torch.zeros_like(expected) if entry.is_buffer else expected)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("name", ["scale", "conv.weight", "norm.running_var", "linear.bias"])
def test_one_nonfinite_number_marks_its_client(layout, name, bad):
    rows = rows_of(layout)
    entry = next(entry for entry in layout.entries if entry.name == name)
    rows[1, entry.stop - 1] = bad
    assert Staging(layout, read(rows)).finite().tolist() == [True, False, True]
