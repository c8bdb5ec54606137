"""Consensus distance and merged model against plain numpy and torch on the rows of the run."""

import numpy as np
import pytest
import torch
from torch import nn

from dfl_lightning import UserError, objectives, read_run
from dfl_lightning import callbacks as cb
from dfl_lightning.data.partitions import Dirichlet


class Normed(nn.Sequential):
    """A network with a running mean and variance."""

    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(64, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 10))


def gossip():
    return [cb.Gossip(k=2), cb.Uniform(), cb.Bernoulli(0.4)]


SCENES = {
    "gossip, clients that have dropped out": (gossip, {}, {}),
    "personal heads": (gossip, {}, {"shared": ["1.*", "2.*"]}),
    "a server": (lambda: [cb.Gossip(k=3), cb.Uniform()], {"topology": "server"}, {}),
    "two servers": (
        lambda: [cb.IFCA(), cb.Uniform()],
        {"topology": {"generator": "server", "args": {"servers": 2}}},
        {"init": "independent"},
    ),
    "additional personal models": (gossip, {}, {"objective": objectives.Ditto()}),
}


def by_hand(run, rows):
    """Compute distance, relative distance, and loss and accuracy of the mean model on all test samples."""
    module, m = run.module, 6
    layout, data = module.federation.layout, module.federation.data.to("cpu")
    rows = rows.cpu().double()
    nodes = rows[m:] if len(rows) > m else rows
    shared = np.concatenate([np.arange(*span) for span in layout.shared_parameters.ranges])
    x = nodes.numpy()[:, shared]
    distance = np.mean([np.sum((row - x.mean(0)) ** 2) for row in x])
    losses, right = [], []
    for client in range(m):
        merged = rows[client].clone()  # its own personal part
        for start, stop in layout.shared.ranges:
            merged[start:stop] = nodes[:, start:stop].mean(0)
        network = Normed().double().eval()
        network.load_state_dict({e.name: merged[e.start : e.stop].reshape(e.shape) for e in layout.entries})
        images, labels = data.batch(data.test[client])
        with torch.no_grad():
            scores = network(images.double())
        losses += nn.functional.cross_entropy(scores, labels, reduction="none").tolist()
        right += (scores.argmax(1) == labels).tolist()
    return distance, distance / np.sum(x.mean(0) ** 2), np.mean(losses), np.mean(right)


@pytest.mark.parametrize("scene", SCENES)
def test_distance_and_merged_model_are_those_of_the_rows(small_run, scene):
    make, options, module = SCENES[scene]
    sizes = {"partition": Dirichlet(0.5, "per_class"), "num_clients": 6, "samples_per_client": None}
    expected = []

    class Keeps(cb.Monitor):
        def on_validation_end(self, trainer, pl_module):
            expected.append(by_hand(run, pl_module.bank.boundary.rows["models"]))

    monitors = [cb.ConsensusDistance(), cb.MergedModel(), Keeps()]
    run = small_run(
        3,
        monitors,
        make(),
        {"network": Normed(), "batch_size": "full", **module},
        sizes,
        precision="64-true",
        **options,
    )
    found = read_run(run.fit().folder).metrics
    names = ("consensus_distance", "consensus_distance_relative", "merged_test_loss", "merged_test_acc")
    for name, values in zip(names, np.array(expected).T, strict=True):
        np.testing.assert_allclose(found[name], values, rtol=1e-9, atol=1e-15, err_msg=name)
    if scene == "a server":
        assert not found["consensus_distance"].any()
    else:
        assert (found["consensus_distance"] > 0).all()


def test_consensus_monitors_change_nothing_and_follow_the_evaluation(small_run, tmp_path):
    bare = small_run(4, root=tmp_path / "bare", check_val_every_n_epoch=2).fit()
    monitors = [cb.ConsensusDistance(), cb.MergedModel()]
    seen = small_run(4, monitors, root=tmp_path / "seen", check_val_every_n_epoch=2).fit()
    assert torch.equal(bare.rows, seen.rows)
    found = read_run(seen.folder).metrics
    assert np.isnan(found["merged_test_acc"]).tolist() == [True, False, True, False]
    assert not np.isnan(found["consensus_distance"]).any()
    for name, values in read_run(bare.folder).metrics.items():
        if name != "seconds":
            np.testing.assert_array_equal(found[name], values, err_msg=name)


def test_early_stopping_by_merged_test_accuracy_is_refused(small_run):
    from lightning.pytorch.callbacks import EarlyStopping

    with pytest.raises(UserError, match=r"monitor=merged_test_acc\) would choose by test data"):
        small_run(3, [cb.MergedModel(), EarlyStopping("merged_test_acc", mode="max")])
