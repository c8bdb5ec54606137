"""configs/fedavg_ft.yaml: FedAvg whose evaluation fine-tunes copies, against plain torch."""

import csv
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import yaml
from torch import nn

from dfl_lightning.checkpoints.io import read_checkpoint
from dfl_lightning.cli import command as cli
from dfl_lightning.data import Digits
from dfl_lightning.data.partitions import Dirichlet
from dfl_lightning.utils.storage.shipped_files import shipped
from tests.helpers.orders import drawn_order

CLIENTS, ROUNDS, HIDDEN = 6, 3, 8
SMALLER = (
    f"--trainer.max_rounds {ROUNDS} --trainer.checkpoint_every 1 --trainer.accelerator cpu "
    f"--data.num_clients {CLIENTS} --data.val_fraction 0.2 --model.network.hidden [{HIDDEN}]"
).split()
CONFIGS = {name: yaml.safe_load(shipped("configs")[name].read_text()) for name in ("fedavg", "fedavg_ft")}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Both configs on fewer clients for a few rounds: files and numbers by name."""
    found = {}
    for name in CONFIGS:
        here = tmp_path_factory.mktemp(name)
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(here)
            patch.setenv("PL_GLOBAL_SEED", "0")
            patch.setattr(sys, "path", list(sys.path))
            assert cli.run("fit", ["--config", name, *SMALLER]) == 0
        (folder,) = here.glob("runs/*/*")
        with np.load(folder / "clients.npz", allow_pickle=False) as arrays:
            clients = {key: torch.from_numpy(arrays[key]) for key in arrays.files}
        with open(folder / "metrics.csv", newline="") as file:
            rows = list(csv.DictReader(file))
        files = [folder / "checkpoints" / f"{which}.ckpt" for which in ("previous", "last")]
        models = {ROUNDS - 1 + place: models_in(file) for place, file in enumerate(files)}
        found[name] = SimpleNamespace(clients=clients, rows=rows, models=models)
    return found


def models_in(checkpoint):
    """All rows of a checkpoint, [m + 1, width]; the last one is the server's."""
    return read_checkpoint(checkpoint)["state_dict"]["bank.rows.models"]


@pytest.fixture(scope="module")
def data():
    """The clients' digits, as the configs divide them."""
    options = CONFIGS["fedavg_ft"]["data"]["init_args"]
    alpha = options["partition"]["init_args"]["alpha"]
    shares = {"test_fraction": options["test_fraction"], "val_fraction": 0.2}
    digits = Digits(num_clients=CLIENTS, partition=Dirichlet(alpha), seed=0, **shares)
    digits.setup()
    return digits.clients


def network_of(row):
    """A plain network with the parameters of a row, in their order."""
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 10))
    nn.utils.vector_to_parameters(row.clone(), network.parameters())
    return network


def finetuned(row, data, client, rounds):
    """Local SGD from the row on a client's training data, as the config says it."""
    model = CONFIGS["fedavg_ft"]["model"]
    network, samples = network_of(row), data.train[client]
    optimizer = torch.optim.SGD(network.parameters(), **model["optimizer"]["init_args"])
    for epoch in range(model["finetune_epochs"]):
        order = drawn_order(len(samples), 0, "finetune", rounds, client, epoch)
        for batch in samples[order].split(model["batch_size"]):
            x, y = data.batch(batch)
            optimizer.zero_grad()
            nn.functional.cross_entropy(network(x), y).backward()
            optimizer.step()
    return network


@torch.no_grad()
def scores(network, data, client, split):
    """Loss and accuracy on a part of a client's data."""
    x, y = data.batch(getattr(data, split)[client])
    outputs = network(x)
    return float(nn.functional.cross_entropy(outputs, y)), float((outputs.argmax(1) == y).double().mean())


def test_fedavg_ft_is_fedavg_with_one_epoch_before_evaluations():
    fedavg, fine_tuned = CONFIGS["fedavg"], CONFIGS["fedavg_ft"]
    assert fine_tuned == {**fedavg, "model": {**fedavg["model"], "finetune_epochs": 1}}


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("split", ["val", "test"])
def test_evaluated_models_equal_plain_torchs_fine_tuning(name, split, runs, data):
    run = runs[name]
    for rounds, models in run.models.items():
        for client in range(CLIENTS):
            make = finetuned if name == "fedavg_ft" else lambda row, *_: network_of(row)
            loss, accuracy = scores(make(models[-1], data, client, rounds), data, client, split)
            assert float(run.clients[f"{split}_loss"][rounds - 1, client]) == pytest.approx(loss, rel=1e-4)
            assert float(run.clients[f"{split}_acc"][rounds - 1, client]) == pytest.approx(accuracy)


def test_fine_tuning_changes_every_clients_score_and_helps(runs):
    plain, fine_tuned = (runs[name].clients for name in CONFIGS)
    assert (fine_tuned["test_loss"] != plain["test_loss"]).all()
    assert fine_tuned["test_acc"].mean() > plain["test_acc"].mean() + 0.1


def test_fine_tuned_models_are_not_kept(runs):
    """Models bit for bit, costs, training losses and the server's own accuracy are those of FedAvg."""
    plain, fine_tuned = (runs[name] for name in CONFIGS)
    for rounds, models in plain.models.items():
        assert torch.equal(fine_tuned.models[rounds], models)
    judged = {key for key in plain.rows[0] if key.startswith(("val_", "test_"))} | {"seconds"}
    assert {"train_loss", "bytes_received", "global_test_acc"} <= plain.rows[0].keys() - judged
    for one, other in zip(plain.rows, fine_tuned.rows, strict=True):
        assert {k: v for k, v in one.items() if k not in judged} == {k: v for k, v in other.items() if k not in judged}


def test_an_evaluation_leaves_the_boundary_as_it_was(small_run):
    run = small_run(2, module={"finetune_epochs": 2}, checkpoint_every=1).fit()
    bank = run.module.bank
    boundary, rows = bank.boundary, {name: rows.clone() for name, rows in bank.boundary.rows.items()}
    first, again = run.module.evaluate(), run.module.evaluate()
    assert bank.boundary is boundary
    assert all(torch.equal(bank.boundary.rows[name], rows[name]) for name in rows)
    for name, values in first.items():
        torch.testing.assert_close(again[name], values, rtol=0, atol=0, equal_nan=True)
