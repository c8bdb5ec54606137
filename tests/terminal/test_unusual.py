"""Settings that can hardly have been meant are named in the banner; those of every day are not."""

import re
import shlex
from fnmatch import fnmatchcase

import networkx as nx
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from dfl_lightning import DFLModule, DFLTrainer
from dfl_lightning import callbacks as cb
from dfl_lightning.bank.layout import Layout
from dfl_lightning.cli.arguments import value_of
from dfl_lightning.data import FromDataset
from dfl_lightning.models import MLP
from dfl_lightning.terminal.banner import notes
from dfl_lightning.terminal.frozen_parameters import frozen_remark, shared_without


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
class Frozen(nn.Module):
    """A body of linear layers and batch norms with some frozen parameters, and a head."""

    def __init__(self, frozen, tail=False):
        super().__init__()
        layers = [nn.Linear(64, 10), nn.BatchNorm1d(10), nn.Linear(10, 10), nn.BatchNorm1d(10)]
        self.body, self.head, self.scale = nn.Sequential(*layers), nn.Linear(10, 10), nn.Parameter(torch.ones(1))
        for name, parameter in self.named_parameters():
            parameter.requires_grad_(not re.search(frozen, name))

    def forward(self, x):
        return self.head(self.body(x.flatten(1))) * self.scale


@pytest.mark.parametrize("frozen", ["^body", "weight$", r"^body\.0", "bias|scale", r"^body\.\d\.weight", "^head"])
@pytest.mark.parametrize("shared", ["*", "body.*"])
def test_suggested_patterns_share_everything_but_frozen_parameters(frozen, shared):
    network = Frozen(frozen)
    if shared != "*" and frozen == "^body":
        return
    layout = Layout(network, [shared])
    remark = frozen_remark(layout)
    sent = {entry.name for entry in layout.entries if layout.is_shared(entry)}
    still = {name for name, parameter in network.named_parameters() if not parameter.requires_grad} & sent
    if not still:
        assert remark is None
        return
    numbers = sum(parameter.numel() for name, parameter in network.named_parameters() if name in still)
    assert remark.startswith(f"{numbers:,} of the {layout.num_parameters:,} parameters are frozen")
    words = shlex.split(remark[remark.index("--model.shared") :].removesuffix(" sends the others only"))
    patterns = value_of(words[1])
    after = Layout(network, patterns)
    assert {entry.name for entry in after.entries if after.is_shared(entry)} == sent - still
    assert frozen_remark(after) is None
    assert len(patterns) <= 5


def test_patterns_are_few_where_layers_are_many():
    names = [f"body.{n}.{part}" for n in range(30) for part in ("weight", "bias", "running_mean", "running_var")]
    excluded = [name for name in names if name.endswith(("weight", "bias"))]
    found = shared_without([*names, "head.weight", "head.bias"], excluded)
    assert sorted(found) == ["*.running_mean", "*.running_var", "head.*"]
    assert not any(fnmatchcase(name, pattern) for name in excluded for pattern in found)


def test_frozen_parameters_are_mentioned_with_their_bytes_and_the_remedy(said):
    network = MLP(hidden=[8])
    run_notes = said(cb.Gossip(k=2), cb.Uniform(), module={"network": network})
    assert run_notes == []
    frozen = MLP(hidden=[8], input_shape=(1, 8, 8), num_classes=10)
    for parameter in frozen.features.parameters():
        parameter.requires_grad_(False)
    assert said(cb.Gossip(k=2), cb.Uniform(), module={"network": frozen}) == [
        "520 of the 610 parameters are frozen (requires_grad=False), but every client stores and sends them: 2.1 kB of "
        "the 2.4 kB of each message; --model.shared '[\"head.*\"]' sends the others only"
    ]
    module = {"network": frozen, "shared": ["head.*"]}
    assert said(cb.Gossip(k=2), cb.Uniform(), module=module) == []
