"""Every method on 20 clients in two clusters: what `scripts/compare.py toy` compares, and what comes out.

The slow tests train all methods with three seeds; run them with `-m slow -s` to see the table.
"""

import contextlib
import io
import math
from typing import NamedTuple

import numpy as np
import pytest
import yaml

from dfl_lightning.cli.command import run
from dfl_lightning.utils.storage.shipped_files import shipped

SEEDS = (0, 1, 2)
FINDERS = ("AFIND+", "PANMLoss", "PANMGrad", "DPFL", "PENS", "FedeRiCo", "IFCA, 2 servers")


@pytest.fixture(scope="module")
def toy(load):
    return load("comparisons.toy")


@pytest.fixture(scope="module")
def commands(load):
    return load("compare").commands("toy")


@pytest.fixture(scope="module")
def configs(commands):
    """Resolve the command of each row to its config."""

    def resolved(words):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            assert run("fit", [*words, "--print_config"]) == 0
        return yaml.safe_load(printed.getvalue())

    return {name: resolved(words) for name, words in commands.items()}


# --- the comparison is fair -------------------------------------------------------------------------------------------
def test_every_shipped_method_for_these_data_is_a_row(toy):
    others = {"fdms", "forecast", "multilabel", "regression", "tabular", "text", "text_lstm"}
    others |= {"async_gossip", "async_afind", "adpsgd", "fedbuff"}  # on another clock
    others |= {"lora_gossip", "ffa_lora", "fedsa_lora", "adf_lora"}  # on text
    assert {words.split()[0] for words in toy.METHODS.values()} == set(shipped("configs")) - others


def test_all_rows_have_the_same_data_and_training(configs):
    expected = configs["Local"]
    for name, config in configs.items():
        assert config["data"] == expected["data"], name
        differs = {key for key, value in config["model"].items() if value != expected["model"][key]}
        own = {"FedAvg-FT": {"finetune_epochs"}, "IFCA, 2 servers": {"init"}, "FedRep": {"shared", "local_epochs"}}
        assert differs == own.get(name, set()), name
        assert config["dropout"] is None


def test_all_rows_train_for_the_same_number_of_epochs(configs):
    for name, config in configs.items():
        head = ((config["objective"] or {}).get("init_args") or {}).get("head_epochs", 0)
        epochs = config["model"]["local_epochs"] + head
        first = config["selection"].get("init_args", {}).get("initial_epochs", epochs)
        assert first + (config["trainer"]["max_rounds"] - 1) * epochs == 150, name


def test_methods_with_a_number_of_neighbours_take_five(configs):
    budgets = {name: config["selection"].get("init_args", {}) for name, config in configs.items()}
    free = {"Local": 0, "Oracle, all 9": "all", "IFCA, 2 servers": None, "pFedGraph": "all", "PACFL": None}
    for name, options in budgets.items():
        if configs[name]["topology"] == "complete" and not name.startswith("AFIND+"):
            assert options.get("k", options.get("budget")) == free.get(name, 5), name
    assert configs["D-SGD"]["topology"]["args"] == configs["Gradient tracking"]["topology"]["args"] == {"d": 5}


# --- precision and recall ---------------------------------------------------------------------------------------------
@pytest.fixture
def folder(tmp_path):
    """Write the folder of a run of four clients in two clusters, from edges (round, receiver, sender, selected)."""

    def write(*edges):
        names = ("round", "receiver", "sender", "selected")
        kinds = (np.int32, np.int32, np.int32, bool)
        columns = list(zip(*edges, strict=True))
        arrays = {n: np.array(c, dtype=k) for n, c, k in zip(names, columns, kinds, strict=True)}
        np.savez(tmp_path / "graphs.npz", **arrays)
        np.savez(tmp_path / "split.npz", clusters=np.array([0, 0, 0, 1]))
        return tmp_path

    return write


def test_precision_and_recall_compare_last_neighbours_with_clusters(toy, folder):
    edges = [(4, 0, 3, True), (5, 0, 1, True), (5, 0, 3, True), (5, 1, 0, True), (5, 2, 2, False), (5, 2, 3, False)]
    precision, recall = toy.found(folder(*edges))
    assert precision == (1 / 2 + 1) / 2  # of clients 0 and 1, which selected clients
    assert math.isclose(recall, (1 / 2 + 1 / 2 + 0) / 3)  # of clients 0, 1 and 2, whose clusters have other clients


def test_no_selected_neighbours_have_no_precision(toy, folder):
    assert toy.found(folder((5, 0, 0, False), (5, 1, 1, False))) is None


def test_clients_selected_by_a_server_are_not_neighbours(toy, folder):
    assert toy.found(folder((5, 4, 0, True), (5, 4, 3, True))) is None


def test_a_cell_has_the_mean_over_seeds(toy, folder):
    def summary(last, best, models, rounds):
        return {
            "test_accuracy": {"acc_last": last, "acc_best_val": best},
            "received_per_client": {"models": models, "bytes": 2e6},
            "rounds": rounds,
            "folder": run_folder,
        }

    run_folder = folder((5, 0, 1, True))
    assert toy.cells([summary(0.5, 0.9, 30, 30), summary(0.6, 0.9, 60, 30)]) == {
        "last round": "55.0 ± 7.1",
        "best on validation": "90.0 ± 0.0",
        "precision": "1.00",
        "recall": "0.17",
        "models a round": "1.5",
        "models": "45",
        "MB": "2.0",
    }


# --- what comes out ---------------------------------------------------------------------------------------------------
class Outcome(NamedTuple):
    """Numbers of a run that are compared."""

    last: float  # accuracy in the last round, points, mean over clients
    chosen: float  # the same of each client's best on validation
    precision: float  # of the neighbours in the last round
    recall: float


@pytest.fixture(scope="module")
def train(load, commands, toy, tmp_path_factory):
    """Run the method of a row with one seed and return its outcome."""

    def outcome(name, seed, *options):
        summary = load("compare").one([*commands[name], *options], seed, tmp_path_factory.mktemp("toy"))
        accuracy, found = summary["test_accuracy"], toy.found(summary["folder"]) or (math.nan, math.nan)
        result = Outcome(100 * accuracy["acc_last"], 100 * accuracy["acc_best_val"], *found)
        print(f"{name}, seed {seed}: {' '.join(f'{number:.3f}' for number in result)}")
        return result

    return outcome


@pytest.fixture(scope="module")
def short(train):
    """Return outcomes by method after eight rounds."""
    names = ("Oracle(5)", "AFIND+", "PANMLoss", "PANMGrad", "DPFL", "Local", "Gossip(5)")
    sooner = {"PANMLoss": ["--selection.stage_one", "6"], "PANMGrad": ["--selection.stage_one", "6"]}
    return {name: train(name, 0, *sooner.get(name, ()), "--trainer.max_rounds", "8") for name in names}


@pytest.mark.parametrize("name", ["AFIND+", "PANMLoss", "PANMGrad", "DPFL"])
def test_searching_methods_find_clusters_and_beat_local_in_eight_rounds(short, name):
    assert short[name].precision > 0.9
    assert short["Oracle(5)"].last + 2 > short[name].last > short["Local"].last + 3


def test_local_is_between_oracle_and_gossip_after_eight_rounds(short):
    assert short["Oracle(5)"].last - 6 > short["Local"].last > short["Gossip(5)"].last + 15


@pytest.fixture(scope="module")
def full(train, toy):
    """Return outcomes by method, one for each seed."""
    return {name: [train(name, seed) for seed in SEEDS] for name in toy.METHODS}


def mean(outcomes, what="last"):
    return np.mean([getattr(outcome, what) for outcome in outcomes])


def always(better, worse, margin):
    """Return True if the first outcome is ahead by more than the margin in every seed."""
    return all(one.last > other.last + margin for one, other in zip(better, worse, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("name", FINDERS)
def test_methods_that_find_clusters_reach_oracle_and_beat_local(full, name):
    assert abs(mean(full[name]) - mean(full["Oracle(5)"])) < 3
    assert always(full[name], full["Local"], 5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["AFIND+", "PANMLoss", "PANMGrad", "DPFL", "PENS"])
def test_selected_neighbours_belong_to_the_receivers_cluster(full, name):
    assert min(outcome.precision for outcome in full[name]) > 0.9


@pytest.mark.slow
@pytest.mark.parametrize("name", ["FedAvg", "FedProx", "D-SGD", "Gradient tracking", "Gossip(5)"])
def test_mixing_with_both_clusters_is_below_local(full, name):
    assert always(full["Local"], full[name], 5)
    assert mean(full["Local"]) > mean(full[name]) + 15


@pytest.mark.slow
def test_fine_tuned_model_of_both_clusters_beats_local(full):
    assert always(full["FedAvg-FT"], full["Local"], 3)
    assert always(full["Oracle(5)"], full["FedAvg-FT"], 1)


@pytest.mark.slow
def test_variants_as_printed_are_below_the_defaults(full):
    assert mean(full["AFIND+"]) > mean(full["AFIND+ as printed"]) + 2
    assert mean(full["PANMGrad"]) > mean(full["PANM as printed"]) + 2


@pytest.mark.slow
def test_keeping_the_best_validated_model_gains_even_with_gossip(full):
    assert mean(full["Gossip(5)"], "chosen") > mean(full["Local"], "chosen") + 2
    assert mean(full["Oracle(5)"], "chosen") > mean(full["Gossip(5)"], "chosen") + 2
