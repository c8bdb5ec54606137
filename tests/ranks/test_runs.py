"""A run is the same, bit for bit, in any number of processes."""

import pytest

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


def check(runs, tmp_path, counts, words):
    found = {}
    for count in counts:
        folder = tmp_path / str(count)
        folder.mkdir()
        (folder / "tiny.py").write_text(TINY_CNN)
        runs.fit(count, folder, words)
        found[count] = runs.contents(folder)
    for count in counts[1:]:
        runs.same(found[counts[0]], found[count], f"{count} processes")
    return found[counts[0]]


@pytest.mark.parametrize("network", [[], CNN], ids=["mlp", "cnn"])
@pytest.mark.parametrize("config", ["afind", "fdms", "panm_loss", "panm_grad", "dpfl"])
def test_the_systems_of_the_papers_are_the_same_in_1_2_3_and_5_processes(runs, tmp_path, config, network):
    words = ["--config", config, *SMALL, *network, *FIVE, *(SPARSE if config == "dpfl" else [])]
    rows, _, checkpoint = check(runs, tmp_path, (1, 2, 3, 5), words)
    assert len(rows) == 3
    models = checkpoint["state_dict"]["bank.rows.models"]
    assert len(models[:24].unique(dim=0)) > 1
