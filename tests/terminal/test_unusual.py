"""Settings that can hardly have been meant are named in the banner; those of every day are not."""

import networkx as nx
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from dfl_lightning import DFLModule, DFLTrainer
from dfl_lightning import callbacks as cb
from dfl_lightning.bank.layout import Columns, CommonTensor, Layout
from dfl_lightning.data import FromDataset
from dfl_lightning.models import MLP
from dfl_lightning.terminal.banner import notes
from dfl_lightning.terminal.explain import explain
from dfl_lightning.terminal.frozen_parameters import frozen_remarks


@pytest.fixture
def said(small_run):
    """Return the banner's notes on a small run that is set up."""

    def said(*policies, rounds=6, **options):
        run = small_run(rounds, policies=policies or None, **options)
        run.trainer.prepare(run.module, run.data)
        assert notes(run.trainer, run.module) == notes(run.trainer, run.module)
        return notes(run.trainer, run.module)

    return said


def without_stages(found):
    return [note for note in found if not note.startswith(("PENS stays", "PANM matches"))]


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        (cb.Gossip(k=6), ["selection.k is 6, but no client has more than 5 neighbours"]),
        (cb.Gossip(k=5), []),
        (cb.Gossip(k="all"), []),
        (cb.PENS(k=3, sampled=7, top=2), ["selection.sampled is 7, but no client has more than 5 neighbours"]),
        (cb.PANM(k=9, l=2), ["selection.k is 9, but no client has more than 5 neighbours"]),
        (cb.PANM(k=2, l=8), ["selection.l is 8, but no client has more than 5 neighbours"]),
        (cb.DPFL(budget=10), ["selection.budget is 10, but no client has more than 5 neighbours"]),
        (cb.DPFL(budget="all"), []),
        (cb.AFIND(k=7), ["selection.k is 7, but no client has more than 5 neighbours"]),
    ],
)
def test_more_neighbours_than_available_are_mentioned(said, selection, expected):
    assert without_stages(said(selection, cb.SampleWeighted())) == expected


def test_neighbours_in_the_topology_are_counted(said):
    ring = nx.cycle_graph(6)
    gossip = [cb.Gossip(k=3), cb.Uniform()]
    assert said(*gossip, topology=ring) == ["selection.k is 3, but no client has more than 2 neighbours"]
    assert said(cb.Gossip(k=2), cb.Uniform(), topology=ring) == []
    assert said(cb.Gossip(k=7), cb.Uniform(), topology="server") == ["selection.k is 7, but the server has 6 clients"]
    assert said(cb.Gossip(k=6), cb.Uniform(), topology="server") == []
    nx.set_node_attributes(ring, 1, "budget")
    assert said(*gossip, topology=ring) == [], "a budget comes first"


def test_number_without_effect_is_not_mentioned(said):
    assert said(cb.AFIND(k=50), cb.AdaptiveThreshold(), cb.Uniform()) == []


def test_nothing_trained_and_nothing_evaluated(said):
    assert said(rounds=0) == ["trainer.max_rounds is 0: there are no rounds, nothing is trained"]
    assert said(module={"local_epochs": 0}) == ["model.local_epochs is 0: clients do not train, models are only mixed"]
    never = (
        "trainer.check_val_every_n_epoch is 7 and there are 6 rounds: no round is evaluated, accuracies stay unknown"
    )
    assert said(check_val_every_n_epoch=7) == [never]
    assert said(check_val_every_n_epoch=6) == []
    assert said(check_val_every_n_epoch=7, limit_val_batches=0) == []
    assert said(rounds=-1, check_val_every_n_epoch=7) == []


# --- pixels or other numbers ------------------------------------------------------------------------------------------
class Tokens(nn.Module):
    """A mean of embeddings, and a linear layer."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(256, 4), nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.embed(x.long()).flatten(1, -2).mean(1))


class Pixels(nn.Module):
    """A linear layer."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(12, 2)

    def forward(self, x):
        return self.head(x.flatten(1))


def notes_on(network, shape, dtype=torch.uint8, **options):
    items = torch.arange(8 * 12).view(8, *shape).to(dtype)
    trainer = DFLTrainer(max_rounds=1, accelerator="cpu", callbacks=[cb.Gossip(k=1)])
    data = FromDataset(TensorDataset(items, torch.arange(8) % 2), num_clients=2, **options)
    trainer.prepare(DFLModule(network), data)
    return [note for note in notes(trainer, trainer.lightning_module) if "uint8" in note]


def test_ambiguous_uint8_data_are_mentioned():
    (row,) = notes_on(Pixels(), (12,))
    assert row.startswith(
        "uint8 data of shape [12] are not images and are used as the numbers 0 to 255; if they are pixels"
    )
    (table,) = notes_on(Tokens(), (3, 4))
    assert table == (
        "uint8 data of shape [3, 4] count as images and are scaled by 1/255, but the network has an Embedding; "
        "--data.scale 1 keeps whole numbers"
    )
    assert "--data.scale 0.00392157 brings them to [0, 1]" in row
    for network, shape in ((Tokens(), (12,)), (Pixels(), (3, 4)), (Pixels(), (1, 3, 4)), (Tokens(), (1, 3, 4))):
        assert notes_on(network, shape) == []
    for network, shape in ((Pixels(), (12,)), (Tokens(), (3, 4))):
        assert notes_on(network, shape, scale=1) == []
        assert notes_on(network, shape, dtype=torch.float32) == []


# --- frozen parameters ------------------------------------------------------------------------------------------------
def test_frozen_parameters_are_in_the_banner_and_in_the_explanation(small_run):
    network = MLP(hidden=[8], input_shape=(1, 8, 8), num_classes=10)
    network.features.requires_grad_(False)
    run = small_run(1, policies=[cb.Gossip(k=2), cb.Uniform()], module={"network": network})
    lines = explain(run.trainer, run.module, run.data)
    assert "MLP (90 parameters each, 520 frozen ones once)" in lines[0]
    assert "base: 520 frozen parameters, 2.1 kB, one copy for all clients, in no message" in lines
    assert any("a model is 360 B on the wire" in line for line in lines)


def test_frozen_batch_norms_are_mentioned(said):
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, 10))
    assert said(module={"network": network}) == []
    network[2].requires_grad_(False)
    (note,) = said(module={"network": network})
    assert note.startswith("batch norms with frozen parameters (2) use their running statistics in training, too")


def test_a_large_network_without_frozen_parameters_is_told_its_cost():
    network = nn.Linear(5_000, 4_000, bias=False, device="meta")
    whole, half = Layout.__new__(Layout), Layout.__new__(Layout)
    for layout, common in ((whole, ()), (half, (CommonTensor("more", torch.Size([3]), torch.float32, False),))):
        layout.common, layout.num_parameters, layout.shared = common, 20_000_000, Columns([(0, 20_000_000)])
    (note,) = frozen_remarks(network, whole, clients=10)
    assert note.startswith(
        "all 20,000,000 parameters are trained: a message takes 80.0 MB, so that a round sends 800.0 MB for each "
        "neighbour that the 10 clients listen to; "
    )
    assert list(frozen_remarks(network, half, clients=10)) == []
