"""Do the methods do what they are for? Minutes of training; run with `-m slow -s` to see the numbers.

AFIND+ on rotated images and FL-FDMS with clients that drop out; `scripts/test_compare.py` has every method on one toy.
"""

import functools
import os
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from dfl_lightning.callbacks import AFIND, AdaptiveThreshold, Boltzmann, Gossip, NeighbourAccuracy, Uniform
from dfl_lightning.data import Digits, FashionMNIST, RotatedClusters
from dfl_lightning.models import MLP
from dfl_lightning.module import DFLModule
from dfl_lightning.trainer import DFLTrainer

pytestmark = pytest.mark.slow

SEEDS = (0, 1, 2)
METHODS = {
    "afind": lambda: [AFIND(nu=0.2), AdaptiveThreshold(tau=0.5), Boltzmann(temperature=1.0)],
    "oracle": lambda: [Gossip(k="all", within="cluster"), Uniform()],
    "gossip": lambda: [Gossip(k=5), Uniform()],
    "local": lambda: [Gossip(k=0), Uniform()],
}


@dataclass
class Outcome:
    """The numbers of a run that are compared."""

    accuracy: float  # points, mean over clients in the best round
    precision: np.ndarray  # of the neighbours, by round
    recall: np.ndarray
    models: float  # received per client and round


def run(method, seed, folder, data, rounds, batch_size, lr):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PL_GLOBAL_SEED", str(seed))
        module = DFLModule(
            MLP(hidden=[64]),
            local_epochs=5,
            batch_size=batch_size,
            optimizer=functools.partial(torch.optim.SGD, lr=lr, momentum=0.9),
            finetune_epochs=1,
        )
        trainer = DFLTrainer(
            max_rounds=rounds,
            callbacks=[*METHODS[method](), NeighbourAccuracy()],
            accelerator="cpu",
            default_root_dir=folder,
            enable_checkpointing=False,
            enable_progress_bar=False,
        )
        trainer.fit(module, datamodule=data())
    metrics = trainer.run.metrics
    outcome = Outcome(
        100 * trainer.run.summary["test_accuracy"]["acc_best_round"],
        metrics["neighbour_precision"],
        metrics["neighbour_recall"],
        metrics["models_received"].mean(),
    )
    print(
        f"{method} seed {seed}: {outcome.accuracy:.2f} %, {outcome.models:.1f} models, "
        f"precision {np.round(outcome.precision[[0, 2, -1]], 3)}, recall {np.round(outcome.recall[[0, 2, -1]], 3)}"
    )
    return outcome


def mean(outcomes):
    return np.mean([outcome.accuracy for outcome in outcomes])


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """Outcomes by method, one a seed, of the job of `configs/afind.yaml`."""

    def data():
        return Digits(num_clients=24, test_fraction=0.25, partition=RotatedClusters([0, 90, 180, 270]))

    folder = tmp_path_factory.mktemp("digits")
    return {method: [run(method, seed, folder, data, 30, 16, 0.05) for seed in SEEDS] for method in METHODS}


def test_on_digits_afind_is_within_one_point_of_the_oracle(digits):
    assert mean(digits["afind"]) > mean(digits["oracle"]) - 1


def test_on_digits_afind_finds_its_cluster_from_round_2(digits):
    for outcome in digits["afind"]:
        assert outcome.precision[2:].min() >= 0.95
        assert outcome.recall[2:].min() >= 0.95


@pytest.mark.parametrize("rival", ["gossip", "local"])
def test_on_digits_afind_is_above_the_rivals_in_every_seed(digits, rival):
    for ours, theirs in zip(digits["afind"], digits[rival], strict=True):
        assert ours.accuracy > theirs.accuracy + 3


def test_on_digits_afind_mixes_as_few_models_as_gossip(digits):
    for ours, theirs in zip(digits["afind"], digits["gossip"], strict=True):
        assert ours.models <= theirs.models + 0.5


@pytest.fixture(scope="module")
def fashion(tmp_path_factory):
    """Outcomes by method, one a seed, on FashionMNIST, half of the 50 clients with images upside down."""
    root = os.environ.get("DFL_DATA_ROOT")
    if not root or not os.path.isdir(os.path.join(root, "FashionMNIST")):
        pytest.skip("set DFL_DATA_ROOT to a folder with torchvision's FashionMNIST to run this")

    def data():
        partition = RotatedClusters([0, 180])
        return FashionMNIST(num_clients=50, samples_per_client=200, partition=partition, root=root, download=False)

    folder = tmp_path_factory.mktemp("fashion")
    methods = ("afind", "oracle", "gossip")
    return {method: [run(method, seed, folder, data, 15, 20, 0.02) for seed in SEEDS[:2]] for method in methods}


def test_on_rotated_images_afind_is_close_to_the_oracle(fashion):
    assert mean(fashion["afind"]) > mean(fashion["oracle"]) - 0.5
    assert mean(fashion["afind"]) > mean(fashion["gossip"])


def test_on_rotated_images_afind_finds_its_cluster_from_round_2(fashion):
    for outcome in fashion["afind"]:
        assert outcome.precision[2:].min() >= 0.95
        assert outcome.recall[2:].min() >= 0.95


@pytest.fixture(scope="module")
def dropping(load, tmp_path_factory):
    """Accuracy of the server's model, mean over rounds, by row of `compare.py fdms`; half of the clients drop out."""
    folder = tmp_path_factory.mktemp("fdms")
    compare = load("compare")
    commands = compare.commands("fdms")
    found = {
        name: [compare.one(commands[name], seed, folder)["test_accuracy"] for seed in SEEDS[:2]]
        for name in ("Full", "Dropout", "FDMS")
    }
    means = {name: [100 * one["global_mean_over_rounds"] for one in ones] for name, ones in found.items()}
    print(means)
    return means


def test_friends_recover_most_of_the_accuracy_lost_to_dropout(dropping):
    for full, without, ours in zip(*(dropping[name] for name in ("Full", "Dropout", "FDMS")), strict=True):
        assert full > without + 5
        assert ours > without + 0.7 * (full - without)
