"""The parts without YAML, as in a notebook."""

import functools
import json
import logging
import warnings

import networkx as nx
import numpy as np
import pytest
import torch
from lightning.pytorch import Callback
from torch import nn
from torch.utils.data import Dataset

from dfl_lightning import DFLModule, DFLTrainer, UserError, data, models
from dfl_lightning import callbacks as cb
from dfl_lightning.data import RotatedClusters

SGD = functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9)


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PL_GLOBAL_SEED", "0")
    return tmp_path


def digits(**options):
    sizes = {"num_clients": 6, "samples_per_client": 40, "partition": RotatedClusters([0, 180])}
    return data.Digits(**{**sizes, **options})


def trainer_of(rounds=2, policies=None, **options):
    policies = [cb.Gossip(k=2), cb.Uniform()] if policies is None else policies
    settings = {"accelerator": "cpu", "enable_progress_bar": False, **options}
    return DFLTrainer(max_rounds=rounds, callbacks=policies, **settings)


def module_of(network=None, **options):
    return DFLModule(
        network or models.MLP(hidden=[8]), **{"optimizer": SGD, "local_epochs": 1, "batch_size": 16, **options}
    )


def test_the_default_optimizer_learns(here):
    """SGD's own rate of 0.001 does not."""
    rows, accuracies = [], []
    explicit = functools.partial(torch.optim.SGD, lr=0.05, momentum=0.9)
    for options in ({}, {"optimizer": explicit}, {"optimizer": torch.optim.SGD}):
        trainer = trainer_of(rounds=5)
        module = DFLModule(models.MLP(hidden=[32]), local_epochs=2, batch_size=16, **options)
        trainer.fit(module, datamodule=data.Digits(num_clients=6, partition=data.IID()))
        rows.append(module.bank.boundary.rows["models"])
        accuracies.append(trainer.run.clients["test_acc"][-1].mean())
    assert torch.equal(rows[0], rows[1])
    assert accuracies[0] > 0.85 > 0.2 > accuracies[2]


def test_the_notebook_example_holds_its_run_as_arrays(here, capsys):
    trainer = DFLTrainer(
        max_rounds=3,
        topology="complete",
        callbacks=[cb.AFIND(nu=0.2), cb.AdaptiveThreshold(tau=0.5), cb.Boltzmann(temperature=1.0)],
        accelerator="cpu",
    )
    trainer.fit(module_of(), datamodule=digits())
    assert "AFIND + AdaptiveThreshold + Boltzmann · 6 clients" in capsys.readouterr().out
    run = trainer.run
    assert run.path.parent == here / "runs" / "run" or run.path.parts[:2] == ("runs", "run")
    assert run.clients["test_acc"].shape == (3, 6)
    assert run.clients["rounds"].tolist() == [0, 1, 2]
    with np.load(run.path / "clients.npz", allow_pickle=False) as saved:
        assert np.array_equal(saved["test_acc"], run.clients["test_acc"])
    assert run.metrics["test_acc"] == pytest.approx(run.clients["test_acc"].mean(1))
    assert set(run.graphs) == {"round", "receiver", "sender", "weight", "selected", "probed"}
    assert json.loads((run.path / "summary.json").read_text()) == run.summary
    assert (run.path / "checkpoints" / "last.ckpt").is_file()
    assert (run.path / "config.yaml").is_file()


def test_weights_in_the_graphs_are_those_of_an_average():
    trainer = trainer_of(policies=[cb.Gossip(k=2), cb.Uniform()])
    trainer.fit(module_of(), datamodule=digits())
    graphs = trainer.run.graphs
    for round in range(2):
        for client in range(6):
            mine = (graphs["round"] == round) & (graphs["receiver"] == client)
            assert graphs["weight"][mine] == pytest.approx([1 / 3] * 3)
            assert graphs["selected"][mine].sum() == 2


class Rings(Dataset):
    """Points inside and outside a circle."""

    def __init__(self, length=60):
        self.points = torch.randn(length, 2, generator=torch.Generator().manual_seed(3))

    def __len__(self):
        return len(self.points)

    def __getitem__(self, index):
        return self.points[index], int(self.points[index].norm() > 1.2)


class Tiny(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(2, 5), nn.Linear(5, 2)

    def forward(self, x):
        return self.head(self.body(x).tanh())


def test_a_module_and_index_lists_are_enough():
    parts = [list(range(0, 20)), list(range(20, 32)), list(range(32, 60))]
    trainer, network = trainer_of(topology="ring"), Tiny()
    start = {name: value.clone() for name, value in network.state_dict().items()}
    trainer.fit(module_of(network), datamodule=data.FromDataset(Rings(), parts=parts))
    assert trainer.run.clients["test_acc"].shape == (2, 3)
    assert trainer.datamodule.clients.sizes("train").tolist() == [15, 9, 21]
    mine = network.state_dict()
    assert all(torch.equal(mine[name], start[name]) for name in start), (
        "the user's module is a pattern, no client's model"
    )


def test_clients_start_from_the_module_as_it_was_given():
    trainer, network = trainer_of(rounds=1, policies=[cb.Gossip(k=0), cb.Uniform()]), Tiny()
    module = module_of(network, local_epochs=0)
    trainer.fit(module, datamodule=data.FromDataset(Rings(), num_clients=4))
    rows = module.bank.boundary.rows["models"]
    flat = torch.cat([p.detach().flatten() for p in network.parameters()])
    assert torch.equal(rows, flat.expand(4, -1))


def test_a_networkx_graph_is_a_topology_by_its_labels():
    graph = nx.Graph([("a1", "a2"), ("a2", "a10"), ("a10", "b"), ("b", "c"), ("c", "d")])
    trainer = trainer_of(topology=graph, policies=[cb.Gossip(k="all"), cb.Uniform()])
    trainer.fit(module_of(), datamodule=digits())
    graphs = trainer.run.graphs
    links = {(int(i), int(j)) for i, j in zip(graphs["receiver"], graphs["sender"], strict=True) if i != j}
    assert links == {(i, i + 1) for i in range(5)} | {(i + 1, i) for i in range(5)}


def test_errors_are_ordinary_exceptions(here):
    with pytest.raises(UserError, match="6 clients"):
        trainer_of(topology=nx.path_graph(5)).fit(module_of(), datamodule=digits())
    assert not [path for path in here.rglob("*") if path.is_file()]


def test_a_run_from_python_has_the_commands_defaults(capsys):
    trainer = DFLTrainer(max_rounds=1, accelerator="cpu")
    trainer.fit(module_of(), datamodule=digits())
    said = capsys.readouterr()
    assert said.out.startswith("Gossip + Uniform · 6 clients")
    assert f"run: {trainer.run.path}" in said.out
    assert "neighbours found: precision" in said.out
    assert said.err == ""
    assert "neighbour_precision" in trainer.run.metrics


def test_named_policies_and_monitors_replace_the_defaults():
    trainer = DFLTrainer(callbacks=[cb.AFIND(), cb.SubstitutionError()], accelerator="cpu")
    assert [type(policy) for policy in trainer.policies()] == [cb.AFIND, cb.Uniform]
    assert [type(c) for c in trainer.callbacks if isinstance(c, cb.Monitor)] == [cb.SubstitutionError]


def test_module_trainer_and_run_have_informative_reprs(here):
    trainer, module = trainer_of(rounds=2), module_of()
    assert repr(trainer) == "DFLTrainer(max_rounds=2, Gossip + Uniform, topology=complete, engine=auto)"
    assert repr(module) == "DFLModule(MLP, local_epochs=1, batch_size=16, optimizer=SGD, objective=Plain)"
    assert repr(trainer.run) == "RunFolder(no run yet)"
    trainer.fit(module, datamodule=digits())
    accuracy = trainer.run.metrics["test_acc"][-1]
    assert repr(trainer.run) == f"RunFolder({trainer.run.path}, 2 rounds, test accuracy {100 * accuracy:.1f} %)"


def test_a_fit_leaves_the_users_warnings_and_log_levels_alone():
    class Warns(Callback):
        def on_train_start(self, trainer, pl_module):
            warnings.warn("the user's own", UserWarning, stacklevel=1)

    logger = logging.getLogger("lightning.pytorch")
    filters, level = list(warnings.filters), logger.level
    with pytest.warns(UserWarning, match="the user's own"):
        trainer_of(policies=[cb.Gossip(k=2), cb.Uniform(), Warns()]).fit(module_of(), datamodule=digits())
    assert warnings.filters == filters
    assert logger.level == level


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            {"network": models.MLP},
            r"model.network is <class .*>, which is not a torch.nn.Module; make an object of it, MLP\(",
        ),
        ({"network": "MLP"}, "model.network is 'MLP', which is not a torch.nn.Module; give an object"),
        ({"local_epochs": 1.5}, "model.local_epochs=1.5; it must be a whole number"),
        ({"batch_size": "all"}, "model.batch_size=all; it must be a whole number"),
    ],
)
def test_arguments_of_a_module_are_refused_when_it_is_made(arguments, sentence):
    with pytest.raises(UserError, match=sentence):
        DFLModule(**{"network": models.MLP(hidden=[8]), **arguments})
