"""Whole runs with models and data on another device than the rest."""

import numpy as np
import pytest
import torch
from pretended import DEVICE, everything_on
from torch import nn
from torchmetrics.classification import MulticlassF1Score, MulticlassPrecision

from dfl_lightning import callbacks as cb
from dfl_lightning.cli.arguments import split
from dfl_lightning.cli.command import DFLCLI, read
from dfl_lightning.objectives import FedProx
from dfl_lightning.utils.storage.shipped_files import shipped

pytestmark = pytest.mark.cpu_bits  # one side of the comparison is the CPU

SMALL = {"trainer.max_rounds": 2, "model.local_epochs": 1, "model.batch_size": 8, "data.samples_per_client": 24}


def fit(name, folder, **options):
    """Two rounds of a shipped config, small, in float64: the run folder and the models."""
    words = {
        "config": shipped("configs")[name],
        "trainer.accelerator": "cpu",
        "trainer.default_root_dir": folder,
        "trainer.enable_progress_bar": "false",
        "trainer.precision": "64-true",
        **SMALL,
        **options,
    }
    cli = DFLCLI("fit", read(split([f"--{key}={value}" for key, value in words.items()])))
    return cli.trainer.run, {name: rows.cpu() for name, rows in cli.model.bank.boundary.rows.items()}


OFTEN = ("afind", "panm_grad", "fdms", "dpfl", "gradient_tracking", "fedavg_ft")
"""Configs that differ in what they compute with tensors."""


@pytest.mark.parametrize(
    "name", [n if n in OFTEN else pytest.param(n, marks=pytest.mark.slow) for n in shipped("configs")]
)
def test_a_shipped_config_runs_on_another_device(name, tmp_path, ordered):
    """Also where operations without a fixed order of their sums are refused, as `trainer.deterministic` asks for."""
    here, rows = fit(name, tmp_path)
    with everything_on(DEVICE):
        there, its_rows = fit(name, tmp_path, **ordered)
    assert rows.keys() == its_rows.keys()
    for name, own in rows.items():
        torch.testing.assert_close(its_rows[name], own, rtol=1e-10, atol=1e-12)
    for name in set(here.metrics) - {"seconds"}:
        np.testing.assert_allclose(there.metrics[name], here.metrics[name], rtol=1e-9, err_msg=name)
    for name, values in here.graphs.items():
        np.testing.assert_allclose(there.graphs[name], values, rtol=1e-6, err_msg=name)


# --- what no shipped config does --------------------------------------------------------------------------------------
class Normed(nn.Module):
    """Batch norms, whose samples interact, and dropout."""

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.2))
        self.head = nn.Linear(4 * 36, 10)

    def forward(self, x):
        return self.head(self.features(x).flatten(1))


class GroupNormed(nn.Module):
    """Group norms and norms of instances, between convolutions."""

    def __init__(self):
        super().__init__()
        norms = [nn.GroupNorm(2, 4), nn.InstanceNorm2d(4, affine=True)]
        self.features = nn.Sequential(nn.Conv2d(1, 4, 3), norms[0], nn.ReLU(), nn.Conv2d(4, 4, 3), norms[1], nn.ReLU())
        self.head = nn.Linear(4 * 16, 10)

    def forward(self, x):
        return self.head(self.features(x).flatten(1))


def heads(**more):
    return {"shared": ["features.*"], **more}


MORE = {
    "augmentation": lambda: {"data": {"augment": True, "normalise": True}},
    "metrics": lambda: {
        "module": {"metrics": [MulticlassF1Score(num_classes=10), MulticlassPrecision(num_classes=10)]}
    },
    "personal heads": lambda: {"module": heads()},
    "personal heads and a pull": lambda: {"module": heads(objective=FedProx(mu=0.5, personal_epochs=2))},
    "proximal": lambda: {"module": {"objective": FedProx(mu=0.5)}},
    "clipped": lambda: {"gradient_clip_val": 0.1},
    "clipped by value": lambda: {"gradient_clip_val": 0.01, "gradient_clip_algorithm": "value"},
    "batch norms": lambda: {"module": {"network": Normed()}},
    "group norms": lambda: {"module": {"network": GroupNormed()}},
    "batch norms and augmentation": lambda: {"module": {"network": Normed()}, "data": {"augment": True}},
    "another start for each": lambda: {"module": {"init": "independent"}},
    "a network that is on the device": lambda: {"module": {"network": Normed().to(DEVICE)}},
    "a server": lambda: SERVER,
    "a server and personal heads": lambda: {**SERVER, "module": heads(finetune_epochs=1)},
    "a server and substitutes": lambda: {
        "policies": [cb.Gossip(k="all"), cb.SampleWeighted(), cb.Bernoulli(0.4), cb.FDMS()],
        "topology": "server",
    },
    "a server with a step of its own": lambda: {
        "policies": [cb.Gossip(k=3), cb.SampleWeighted(server_step=0.5)],
        "topology": "server",
    },
}
SERVER = {"policies": [cb.Gossip(k="all"), cb.SampleWeighted()], "topology": "server"}


def results(small_run, case, engine):
    torch.manual_seed(0)
    run = small_run(rounds=2, precision="64-true", engine=engine, **MORE[case]()).fit()
    boundary = run.module.bank.boundary
    clients = {name: torch.as_tensor(values) for name, values in run.trainer.run.clients.items()}
    return {**boundary.rows, **boundary.evaluation, **clients}


QUICK = ("augmentation", "metrics", "personal heads and a pull", "clipped", "batch norms", "a server and substitutes")


@pytest.mark.parametrize("engine", ["stacked", pytest.param("loop", marks=pytest.mark.slow)])
@pytest.mark.parametrize("case", [c if c in QUICK else pytest.param(c, marks=pytest.mark.slow) for c in MORE])
def test_other_runs_on_another_device(small_run, case, engine):
    here = results(small_run, case, engine)
    with everything_on(DEVICE):
        there = results(small_run, case, engine)
    assert here.keys() == there.keys()
    for name, values in here.items():
        torch.testing.assert_close(there[name], values.to(there[name].dtype), rtol=1e-9, atol=1e-11, equal_nan=True)
