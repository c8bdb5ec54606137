"""Unequal conditions: settings outside of methods in which runs differ, such as training, rounds, data and attacks."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from dfl_lightning.bench.report.method_names import class_name
from dfl_lightning.bench.report.settings.differences import differing, words

TRAINING = ("selection", "objective", "prediction")
"""Groups of policies that can train. Their options named `...epochs` and `...steps` are conditions."""

SECOND_MODELS = ("APFL", "Ditto")
"""Objectives that train a personal model in addition to the mixed one, for as many epochs or steps."""

COMPRESSIONS = ("CHOCO", "QSGD", "TopK")
"""Outgoing policies that are part of a method; all others, such as attacks and noise, are conditions."""

WORDS = {
    "model.local_epochs": "local epochs",
    "model.local_steps": "local steps",
    "work": "further training",
    "model.batch_size": "batch size",
    "model.batch_growth": "growth of batches",
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
"""Names of conditions in plain words, in the order in which they are listed; others are called by their option."""

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
    """Find the conditions outside of methods in which runs differ.

    Args:
        configs: resolved config of each run, or of each row of a table; empty if unknown.
        facts: further conditions of each run by name, such as its number of training samples.
        without: options to leave out, because the caller shows them elsewhere.

    Returns:
        The name of each condition in plain words, with the value of each run; an unknown value is "not known".

    Examples:
        >>> ditto = {"model": {"local_epochs": 2}, "trainer": {"max_rounds": 30}, "selection": {"class_path": "A"}}
        >>> unequal_conditions([ditto, {**ditto, "model": {"local_epochs": 5}, "selection": {"class_path": "B"}}])
        [('local epochs', ['2', '5'])]
    """
    with_config = [run for run, config in enumerate(configs) if config]
    reduced = [_conditions(configs[run]) for run in with_config]
    compares_graphs = [index for index, config in enumerate(reduced) if not _graph_is_method(config["topology"])]
    graphs = [config.pop("topology") for config in reduced]
    for run, conditions in zip(with_config, reduced, strict=True):
        conditions.update(facts[run] if facts else {})
    unequal = list(differing(reduced, "")) if len(reduced) > 1 else []
    if any(graphs[index] != graphs[compares_graphs[0]] for index in compares_graphs):
        unequal.append(("topology", graphs))
    unequal = [(name, values) for name, values in unequal if name not in without]
    order = list(WORDS)
    unequal.sort(key=lambda entry: order.index(entry[0]) if entry[0] in WORDS else len(order))
    listed = []
    for name, values in unequal:
        value_of = dict(zip(with_config, map(words, values), strict=True))
        listed.append((WORDS.get(name, name), [value_of.get(run, "not known") for run in range(len(configs))]))
    if with_config and len(with_config) < len(configs):
        listed.append(("settings", ["known" if config else "not known" for config in configs]))
    return listed


def in_words(rows: Sequence[str], unequal: Sequence[tuple[str, Sequence[str]]]) -> str:
    """Describe in words the conditions in which rows differ; empty without differences.

    Args:
        rows: names of the rows, in the order of the values.
        unequal: result of `unequal_conditions`.

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
        listed = [f"{value} ({_named(named, largest > 3 and value == most)})" for value, named in by_value.items()]
        parts.append(f"{name}: {', '.join(listed)}")
    return "; ".join(parts)


def _named(rows: Sequence[str], are_most: bool) -> str:
    """Name a group of rows, or call it `the others`.

    Args:
        rows: names of rows with the same value.
        are_most: True for the largest group, if it has more than three rows.
    """
    return "the others" if are_most else ", ".join(rows)


def _conditions(config: Mapping[str, Any]) -> dict[str, Any]:
    """Reduce a resolved config to its conditions: what does not belong to the method."""
    trainer, model = config.get("trainer") or {}, config.get("model") or {}
    return {
        "rounds": trainer.get("max_epochs") or trainer.get("max_rounds"),
        "trainer": {key: trainer.get(key) for key in _TRAINER},
        "model": {
            **{key: model.get(key) for key in _MODEL},
            "batch_growth": model.get("batch_growth") or None,
            "keep_optimizer": bool(model.get("keep_optimizer")),
        },
        "data": _without(config.get("data"), _NOT_OF_DATA),
        "work": ", ".join(_further_training(config)) or None,
        "topology": config.get("topology"),
        "dropout": config.get("dropout"),
        "outgoing": [one for one in _policies(config.get("outgoing")) if _class_name(one) not in COMPRESSIONS] or None,
    }


def _further_training(config: Mapping[str, Any]) -> Iterator[str]:
    """Describe the training that a method does in addition to local training, one text for each option."""
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
    return class_name(str(path))


def _without(value: Any, keys: Collection[str]) -> Any:
    if not isinstance(value, Mapping):
        return value
    arguments = {key: inner for key, inner in (value.get("init_args") or {}).items() if key not in keys}
    return {**value, "init_args": arguments}


def _graph_is_method(topology: Any) -> bool:
    """Return True if the topology names the method: that of a server, or of certain graphs (see `method_of`)."""
    from dfl_lightning.topology import method_of  # imported here, because networkx takes time to import

    return "server" in str(topology) or bool(method_of(topology))
