"""Conditions in which runs differ in addition to their methods."""

import copy

import pytest

from dfl_lightning.bench.report.settings.conditions import in_words, unequal_conditions

BASE = {
    "seed_everything": 0,
    "trainer": {"max_rounds": 30, "precision": "32", "default_root_dir": "a"},
    "model": {
        "local_epochs": 5,
        "batch_size": 16,
        "optimizer": {"class_path": "torch.optim.SGD", "init_args": {"lr": 0.05, "momentum": 0.9}},
        "finetune_epochs": 1,
        "init": "common",
    },
    "data": {"class_path": "Digits", "init_args": {"num_clients": 24, "seed": 1, "test_fraction": 0.25}},
    "topology": "complete",
    "selection": {"class_path": "Gossip", "init_args": {"k": 5}},
}


def changed(path, value):
    config = copy.deepcopy(BASE)
    *inner, last = path.split("/")
    place = config
    for key in inner:
        place = place[key]
    place[last] = value
    return config


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("model/local_epochs", 2, ("local epochs", ["5", "2"])),
        ("model/optimizer/init_args/momentum", 0.0, ("momentum", ["0.9", "0.0"])),
        ("model/batch_growth", 4, ("growth of batches", ["–", "4"])),
        ("model/finetune_epochs", 0, ("epochs of fine-tuning", ["1", "0"])),
        ("model/init", "clusters", ("initial models", ["common", "clusters"])),
        ("trainer/max_rounds", 12, ("rounds", ["30", "12"])),
        ("trainer/max_epochs", 12, ("rounds", ["30", "12"])),
        ("data/init_args/test_fraction", 0.5, ("share of test data", ["0.25", "0.5"])),
        ("topology", "ring", ("topology", ["complete", "ring"])),
        (
            "dropout",
            {"class_path": "Bernoulli", "init_args": {"rate": 0.3}},
            ("dropouts", ["–", "Bernoulli: rate = 0.3"]),
        ),
        ("outgoing", {"class_path": "SignFlip"}, ("attack or noise", ["–", "SignFlip"])),
        (
            "selection",
            {"class_path": "DPFL", "init_args": {"initial_epochs": 10}},
            ("further training", ["–", "DPFL initial_epochs = 10"]),
        ),
        ("objective", {"class_path": "Ditto"}, ("further training", ["–", "Ditto's personal models"])),
    ],
)
def test_each_condition_is_found_alone(path, value, expected):
    assert unequal_conditions([BASE, changed(path, value)]) == [expected]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("objective", {"class_path": "mine.Ditto"}),  # a user's own class: what it trains is not known
        ("seed_everything", 3),
        ("trainer/default_root_dir", "b"),
        ("data/init_args/seed", 2),
        ("selection/init_args/k", 20),
        ("topology", "server"),
        ("topology", "el_local"),
        ("outgoing", {"class_path": "TopK"}),
        ("objective", {"class_path": "FedProx", "init_args": {"mu": 0.2, "personal_epochs": None}}),
        ("aggregation", {"class_path": "Metropolis", "init_args": {"steps": 4}}),
    ],
)
def test_methods_seeds_and_folders_are_not_conditions(path, value):
    assert unequal_conditions([BASE, changed(path, value)]) == []


def test_facts_unknown_settings_and_left_out_options():
    facts = [{"training samples": 1101}, {"training samples": 1365}]
    assert unequal_conditions([BASE, BASE], facts) == [("training samples", ["1101", "1365"])]
    two = changed("model/optimizer/init_args/lr", 0.1)
    assert unequal_conditions([BASE, two], without=["model.optimizer.lr"]) == []
    found = unequal_conditions([BASE, {}, two])
    assert found == [
        ("learning rate", ["0.05", "not known", "0.1"]),
        ("settings", ["known", "not known", "known"]),
    ]
    assert unequal_conditions([]) == unequal_conditions([BASE]) == unequal_conditions([{}, {}]) == []


def test_a_sentence_groups_rows_by_value():
    values = [("local epochs", ["5", "5", "5", "2", "5"]), ("rounds", ["1", "1", "1", "1", "3"])]
    expected = "local epochs: 5 (the others), 2 (D); rounds: 1 (the others), 3 (E)"
    assert in_words(list("ABCDE"), values) == expected
    assert in_words([], []) == ""
