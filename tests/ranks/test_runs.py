"""A run is the same, bit for bit, in any number of processes."""

import contextlib
import csv
import io
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from dfl_lightning import cli

TINY_CNN = """
import torch
from torch import nn


class TinyCNN(nn.Sequential):
    def __init__(self):
        super().__init__(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 10)
        )
"""
CNN = ["--model.network", "tiny.TinyCNN"]
SMALL = ["--data.num_clients", "24", "--data.samples_per_client", "16", "--trainer.max_rounds", "3"]
FIVE = ["--trainer.cohorts", "5"]
SPARSE = ["--topology", "{generator: partial, args: {fraction: 0.3}, seed: 1}"]


def fit(folder, words):
    """`dfl-fit` in this process, which may be one of several; returns its exit code and what it said."""
    os.chdir(folder)
    count = os.environ.get("WORLD_SIZE", "1")
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = cli.run("fit", [*words, "--trainer.accelerator", "cpu", "--trainer.devices", count])
    return code, said.getvalue()


def contents(folder):
    """What a run leaves, as far as it may not depend on the number of processes."""
    [run] = Path(folder, "runs").glob("*/*")
    table = csv.DictReader((run / "metrics.csv").read_text().splitlines())
    rows = [{k: v for k, v in row.items() if k != "seconds"} for row in table]
    arrays = {name: dict(np.load(run / name)) for name in ("clients.npz", "graphs.npz", "split.npz")}
    checkpoint = torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)
    return rows, arrays, checkpoint


def same(a, b, where=""):
    """Equal to the last bit, through dicts and lists."""
    assert type(a) is type(b), where
    if isinstance(a, dict):
        assert a.keys() == b.keys(), where
        for key in a:
            if key not in ("seconds", "loops"):
                same(a[key], b[key], f"{where}/{key}")
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b), where
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            same(x, y, f"{where}/{i}")
    elif isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype, where
        assert torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8)), where
    elif isinstance(a, np.ndarray):
        np.testing.assert_array_equal(a, b, err_msg=where)
    else:
        assert a == b or (a != a and b != b), (where, a, b)


def check(on_ranks, tmp_path, counts, words):
    found = {}
    for count in counts:
        folder = tmp_path / str(count)
        folder.mkdir()
        (folder / "tiny.py").write_text(TINY_CNN)
        for code, said in on_ranks(count, fit, str(folder), words):
            assert code == 0, said
        found[count] = contents(folder)
    for count in counts[1:]:
        same(found[counts[0]], found[count], f"{count} processes")
    return found[counts[0]]


@pytest.mark.parametrize("network", [[], CNN], ids=["mlp", "cnn"])
@pytest.mark.parametrize("config", ["afind", "fdms", "panm_loss", "panm_grad", "dpfl"])
def test_the_systems_of_the_papers_are_the_same_in_1_2_3_and_5_processes(on_ranks, tmp_path, config, network):
    words = ["--config", config, *SMALL, *network, *FIVE, *(SPARSE if config == "dpfl" else [])]
    rows, _, checkpoint = check(on_ranks, tmp_path, (1, 2, 3, 5), words)
    assert len(rows) == 3
    models = checkpoint["state_dict"]["bank.rows.models"]
    assert len(models[:24].unique(dim=0)) > 1
