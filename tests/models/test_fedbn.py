"""FedBN (Li et al., 2021): clients exchange everything but their normalisation layers."""

import pytest
import torch
from torch import nn

from dfl_lightning import callbacks
from dfl_lightning.utils.errors import UserError


def network():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 10))


def test_norms_stay_with_the_client_and_the_rest_is_mixed(small_run):
    everybody = [callbacks.Gossip(k="all"), callbacks.SampleWeighted()]
    run = small_run(1, policies=everybody, module={"network": network(), "personal": "norms"}).fit()
    layout, rows = run.module.bank.layout, run.rows
    alike = {
        e.name: bool((rows[:, e.start : e.stop] - rows[:1, e.start : e.stop]).abs().max() < 1e-6)
        for e in layout.entries
    }
    assert [name for name, same in alike.items() if not same] == [
        "2.weight",
        "2.bias",
        "2.running_mean",
        "2.running_var",
    ]


def test_another_word_than_norms_is_refused(small_run):
    with pytest.raises(UserError, match=r"model.personal=heads; it must be norms or null, and model.shared takes"):
        small_run(1, module={"network": network(), "personal": "heads"})
