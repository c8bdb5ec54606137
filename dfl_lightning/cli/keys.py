"""The table of a config's top-level keys, from which all other tables of keys and groups are derived.

It imports only the standard library, so that `--help` is quick.
"""

from __future__ import annotations

from typing import NamedTuple


class Key(NamedTuple):
    """The description of a key.

    Attributes:
        about: a line for `--help`.
        base: name of a group's base class in this package; empty if the key is not a group.
    """

    about: str
    base: str = ""


KEYS = {
    "seed_everything": Key("the run's seed (default 0)"),
    "trainer": Key("rounds, checkpoints, precision, loggers, Lightning's callbacks"),
    "model": Key("network, local_epochs, batch_size, optimizer, lr_scheduler, …"),
    "data": Key("data set, num_clients, partition, test and validation parts", "data.FederatedData"),
    "topology": Key("the communication graph: a file, or the name of a shipped one"),
    "clock": Key("simulated time: whether clients wait for each other", "callbacks.Clock"),
    "dropout": Key("which clients are active in a round", "callbacks.Dropout"),
    "outgoing": Key("what leaves a client: noise, compression, attacks", "callbacks.Outgoing"),
    "selection": Key("whom each client learns from", "callbacks.Selection"),
    "threshold": Key("what score is enough to be learned from", "callbacks.Threshold"),
    "substitution": Key("which model stands in for a client that has dropped out", "callbacks.Substitution"),
    "aggregation": Key("how the chosen models are weighed", "callbacks.Aggregation"),
    "objective": Key("the local training rule", "objectives.Objective"),
    "prediction": Key("how clients predict in evaluations, beyond a network's scores", "callbacks.Prediction"),
    "monitors": Key("what else is measured", "callbacks.Monitor"),
    "engine": Key("how clients are trained: auto, stacked (side by side) or loop"),
}
"""Top-level keys of a config, in the order in which they are saved."""

FAMILIES = {name: key.base for name, key in KEYS.items() if key.base.startswith("callbacks.")}
"""Groups of policies and monitors."""

LISTS = ("outgoing", "monitors")
"""The groups that take several classes."""

GROUPS = {
    **FAMILIES,
    **{name: KEYS[name].base for name in ("objective", "data")},
    **{"data.partition": "data.Partition", "model.network": "models.Network", "model.task": "tasks.Task"},
}
"""Base classes of all groups with shipped classes, by key; a group comes after the one that it is part of."""
