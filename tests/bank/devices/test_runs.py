"""Whole runs with models and data on another device than the rest."""

import numpy as np
import pytest
import torch
from pretended import DEVICE, everything_on

from dfl_lightning.arguments import find_configs, settle_choices
from dfl_lightning.cli import DFLCLI
from dfl_lightning.resources import shipped

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
    given, configs = find_configs([f"--{key}={value}" for key, value in words.items()])
    cli = DFLCLI("fit", settle_choices(given), configs)
    return cli.trainer.run, {name: rows.cpu() for name, rows in cli.model.bank.boundary.rows.items()}


@pytest.mark.parametrize("name", shipped("configs"))
def test_a_shipped_config_runs_on_another_device(name, tmp_path):
    here, rows = fit(name, tmp_path)
    with everything_on(DEVICE):
        there, its_rows = fit(name, tmp_path)
    assert rows.keys() == its_rows.keys()
    for name, own in rows.items():
        torch.testing.assert_close(its_rows[name], own, rtol=1e-10, atol=1e-12)
    for name in set(here.metrics) - {"seconds"}:
        np.testing.assert_allclose(there.metrics[name], here.metrics[name], rtol=1e-9, err_msg=name)
    for name, values in here.graphs.items():
        np.testing.assert_allclose(there.graphs[name], values, rtol=1e-6, err_msg=name)
