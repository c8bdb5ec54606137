"""Batches of all data of a client: by the word, and by a number above the clients' samples."""

import copy

import pytest
import torch
from torch import nn
from torch.func import functional_call

from dfl_lightning import callbacks
from dfl_lightning.cli import command as cli
from dfl_lightning.data.partitions import Dirichlet
from dfl_lightning.models import MLP

UNEQUAL = {"partition": Dirichlet(alpha=0.5, flavour="per_class"), "num_clients": 12, "samples_per_client": None}
ALONE = [callbacks.Gossip(k=0), callbacks.Uniform()]


def run_of(small_run, engine, batch_size, rounds=2, **options):
    module = {
        "network": MLP(hidden=[8]),
        "batch_size": batch_size,
        "local_epochs": 3,
        "optimizer": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        "lr_scheduler": None,
    }
    options = {"engine": engine, "policies": ALONE, "precision": "64-true", **options}
    return small_run(rounds, module=module, data=UNEQUAL, **options)


@pytest.mark.parametrize("engine", ["loop", "stacked"])
@pytest.mark.parametrize("batch_size", ["full", 1_000_000])
def test_full_batches_are_gradient_descent_on_all_data(small_run, engine, batch_size):
    run = run_of(small_run, engine, batch_size).fit()
    data, network = run.module.federation.data.to("cpu"), copy.deepcopy(run.module.network).double()
    sizes = data.sizes("train").tolist()
    assert len(set(sizes)) > 2
    start = {name: value.detach().double() for name, value in run.module.network.named_parameters()}
    for client, row in enumerate(run.rows):
        x, y = data.batch(data.train[client], dtype=torch.float64)
        model = {name: value.clone().requires_grad_() for name, value in start.items()}
        for _ in range(2 * 3):
            loss = nn.functional.cross_entropy(functional_call(network, model, x), y)
            steps = torch.autograd.grad(loss, model.values())
            model = {
                name: (value - 0.1 * step).detach().requires_grad_()
                for (name, value), step in zip(model.items(), steps, strict=True)
            }
        found = dict(zip(model, row.split([value.numel() for value in model.values()]), strict=True))
        for name, value in model.items():
            torch.testing.assert_close(found[name].view_as(value), value.detach(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_the_batch_size_is_capped_at_the_largest_client(small_run, engine):
    run = run_of(small_run, engine, "full").fit()
    largest = int(run.module.federation.data.sizes("train").max())
    for batch_size in (largest, 1_000_000):
        other = run_of(small_run, engine, batch_size).fit()
        assert other.module.engine.config.batch_size == run.module.engine.config.batch_size == largest
        assert torch.equal(other.rows, run.rows)


def test_a_batch_within_the_clients_data_stays_as_it_is(small_run):
    run = run_of(small_run, "stacked", 7).fit()
    assert run.module.engine.config.batch_size == 7
    assert run.module.batch_size == 7


def test_a_printed_config_keeps_batch_size_full(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    few = ["--data.num_clients", "8", "--data.samples_per_client", "20", "--model.local_epochs", "3"]
    assert cli.run("fit", ["--config", "afind", *few, "--model.batch_size", "full", "--print_config"]) == 0
    printed = capsys.readouterr().out
    assert "\n  batch_size: full\n" in printed
    (tmp_path / "mine.yaml").write_text(printed)
    assert cli.run("fit", ["--config", "mine.yaml", "--explain"]) == 0
    assert "3 epochs, 24 optimizer steps, 360 samples over all clients" in capsys.readouterr().out  # 15 train, 5 test
