"""The conditions in which runs differ outside of their methods: training, rounds, data, failures and attacks."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from dfl_lightning.bench.report.settings.differences import differing, words

TRAINING = ("selection", "objective", "prediction")
"""Policies that can train. What their options named `...epochs` and `...steps` train is a condition."""

SECOND_MODELS = ("APFL", "Ditto")
"""Objectives that train a personal model in addition to the one that is mixed, for as long as it."""

COMPRESSIONS = ("CHOCO", "QSGD", "TopK")
"""Outgoing policies that are a method too; all others, attacks and noise, are conditions."""

WORDS = {
    "model.local_epochs": "local epochs",
    "model.local_steps": "local steps",
    "work": "further training",
    "model.batch_size": "batch size",
    "model.optimizer": "optimizer",
    "model.optimizer.lr": "learning rate",
    "model.optimizer.momentum": "momentum",
    "model.optimizer.weight_decay": "weight decay",
    "model.keep_optimizer": "optimizers last over rounds",
    "model.lr_scheduler": "learning rate schedule",
    "model.finetune_epochs": "epochs of fine-tuning",
    "rounds": "rounds",
    "trainer.check_val_every_n_epoch": "rounds between evaluations",
    "trainer.precision": "precision",
    "model.network": "network",
    "model.init": "initial models",
    "model.loss": "loss",
    "data": "data",
    "data.num_clients": "clients",
    "data.partition": "partition of the data",
    "data.test_fraction": "share of test data",
    "data.val_fraction": "share of validation data",
    "data.samples_per_client": "samples of a client",
    "data.split": "split of the data",
    "training samples": "training samples",
    "topology": "topology",
    "dropout": "dropouts",
    "outgoing": "attack or noise",
}
"""Names of conditions in plain words, in the order in which they are said; others are said by their option."""

_TRAINER = (
    *("precision", "gradient_clip_val", "gradient_clip_algorithm", "accumulate_grad_batches"),
    "check_val_every_n_epoch",
)
_MODEL = (
    *("local_epochs", "local_steps", "batch_size", "optimizer", "lr_scheduler", "finetune_epochs", "network", "init"),
    *("loss", "task", "on_divergence"),
)
_NOT_OF_DATA = ("seed", "root", "download")


def unequal_conditions(
    configs: Sequence[Mapping[str, Any]],
    facts: Sequence[Mapping[str, Any]] = (),
    without: Collection[str] = (),
) -> list[tuple[str, list[str]]]:
    """Find the conditions outside of the method in which runs differ.

    Args:
        configs: resolved, one for each run or row.
        facts: further conditions of each by name, such as its number of training samples.
        without: options that are left out, because they are said elsewhere.

    Returns:
        The name of each condition in plain words, with the value of each run. One that is not known is "not known".

    Examples:
        >>> ditto = {"model": {"local_epochs": 2}, "trainer": {"max_rounds": 30}, "selection": {"class_path": "A"}}
        >>> unequal_conditions([ditto, {**ditto, "model": {"local_epochs": 5}, "selection": {"class_path": "B"}}])
        [('local epochs', ['2', '5'])]
    """
    known = [at for at, config in enumerate(configs) if config]
    reduced = [_conditions(configs[at]) for at in known]
    compares_graphs = [at for at, config in enumerate(reduced) if not _graph_is_method(config["topology"])]
    graphs = [config.pop("topology") for config in reduced]
    for at, more in zip(known, reduced, strict=True):
        more.update(facts[at] if facts else {})
    found = list(differing(reduced, "")) if len(reduced) > 1 else []
    if any(graphs[at] != graphs[compares_graphs[0]] for at in compares_graphs):
        found.append(("topology", graphs))
    found = [(name, values) for name, values in found if name not in without]
    order = list(WORDS)
    found.sort(key=lambda entry: order.index(entry[0]) if entry[0] in WORDS else len(order))
    listed = []
    for name, values in found:
        of_known = dict(zip(known, map(words, values), strict=True))
        listed.append((WORDS.get(name, name), [of_known.get(at, "not known") for at in range(len(configs))]))
    if known and len(known) < len(configs):
        listed.append(("settings", ["known" if config else "not known" for config in configs]))
    return listed


def in_words(rows: Sequence[str], unequal: Sequence[tuple[str, Sequence[str]]]) -> str:
    """Say in which conditions rows differ; empty where they do not.

    Args:
        rows: names, in the order of the values.
        unequal: as `unequal_conditions` finds them.

    Examples:
        >>> in_words(["Gossip", "AFIND+", "Ditto"], [("local epochs", ["5", "5", "2"])])
        'local epochs: 5 (Gossip, AFIND+), 2 (Ditto)'
    """
    parts = []
    for name, values in unequal:
        by_value: dict[str, list[str]] = {}
        for row, value in zip(rows, values, strict=True):
            by_value.setdefault(value, []).append(row)
        largest = max(map(len, by_value.values()))
        most = next(value for value, named in by_value.items() if len(named) == largest)
        said = [f"{value} ({_named(named, largest > 3 and value == most)})" for value, named in by_value.items()]
        parts.append(f"{name}: {', '.join(said)}")
    return "; ".join(parts)


def _named(rows: Sequence[str], are_most: bool) -> str:
    """Name rows; the largest group of more than three is called the others."""
    return "the others" if are_most else ", ".join(rows)


def _conditions(config: Mapping[str, Any]) -> dict[str, Any]:
    """Keep the part of a resolved config that is not the method."""
    trainer, model = config.get("trainer") or {}, config.get("model") or {}
    found: dict[str, Any] = {
        "rounds": trainer.get("max_epochs") or trainer.get("max_rounds"),
        "trainer": {key: trainer.get(key) for key in _TRAINER},
        "model": {**{key: model.get(key) for key in _MODEL}, "keep_optimizer": bool(model.get("keep_optimizer"))},
        "data": _without(config.get("data"), _NOT_OF_DATA),
        "work": ", ".join(_work(config)) or None,
        "topology": config.get("topology"),
        "dropout": config.get("dropout"),
        "outgoing": [one for one in _policies(config.get("outgoing")) if _class_name(one) not in COMPRESSIONS] or None,
    }
    return found


def _work(config: Mapping[str, Any]) -> Iterator[str]:
    """Name what options of the method train in addition to the local work."""
    for group in TRAINING:
        for policy in _policies(config.get(group)):
            if _class_name(policy) in SECOND_MODELS:
                yield f"{_class_name(policy)}'s personal models"
            arguments = (policy.get("init_args") or {}) if isinstance(policy, Mapping) else {}
            for key, value in arguments.items():
                if key.endswith(("epochs", "steps")) and value is not None:
                    yield f"{_class_name(policy)} {key} = {value}"


def _policies(value: Any) -> list[Any]:
    return [] if value is None else list(value) if isinstance(value, list) else [value]


def _class_name(policy: Any) -> str:
    path = policy.get("class_path") if isinstance(policy, Mapping) else policy
    return str(path).rpartition(".")[2]


def _without(value: Any, keys: Collection[str]) -> Any:
    if not isinstance(value, Mapping):
        return value
    arguments = {key: inner for key, inner in (value.get("init_args") or {}).items() if key not in keys}
    return {**value, "init_args": arguments}


def _graph_is_method(topology: Any) -> bool:
    """Say whether a topology is a method: a server's, or one of a graph that reports name methods by."""
    from dfl_lightning.topology import method_of  # it loads networkx

    return "server" in str(topology) or bool(method_of(topology))
