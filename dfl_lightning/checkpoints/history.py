"""The history of a run: the checkpoint from which it was forked, and the settings that a resume has changed.

The config of such a run does not repeat it from round 0. So the history is kept in its checkpoints, and written into
its `config.yaml` and `summary.json`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import yaml

from dfl_lightning.checkpoints.own_code import CODE
from dfl_lightning.utils.code.source_code import differing
from dfl_lightning.utils.errors import UserError
from dfl_lightning.utils.storage.yaml_files import CLASS_FOLDERS, dump_yaml
from dfl_lightning.utils.words import enumerated

FORKED, CHANGED = "forked_from", "changed_on_resume"
"""Keys of a history: `{checkpoint, round, changed}`, and a list of `{round, changed}`."""

UNKNOWN_SETTINGS, NOT_MAKEABLE = "unknown", "not_makeable"
"""Keys of a config that Python code has made: objects with unknown arguments, and objects that a config cannot make."""

_NOT_DECIDING = ("monitors", CLASS_FOLDERS, FORKED, CHANGED, CODE)
"""Keys of a config that do not change the numbers of a round, or that are notes about a run."""

_EXECUTION_OPTIONS = {
    *("max_rounds", "max_epochs", "max_time", "fast_dev_run", "accelerator", "devices", "num_nodes", "strategy"),
    *("process_timeout", "default_root_dir", "checkpoint_every", "checkpoints", "keep_comparisons", "logger"),
    *("log_every_n_steps", "profiler", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"),
    *("cohorts", "cuda_graphs", "deterministic", "benchmark", "detect_anomaly", "inference_mode", "barebones"),
    *("num_sanity_val_steps", "enable_autolog_hparams", "model_registry", "log_clients"),
}
"""Options of the trainer that do not change the numbers of a round, except for rounding: sums may differ in their last
bits on another accelerator, or if clients are trained in other cohorts.
"""

_WITHOUT_CONFIG = ("seed", "data", "topology", "policies")
"""Entries of a checkpoint with the settings of a run that has no config, since Python code started it."""


def resumed_history(
    former: dict[str, Any], here: dict[str, Any], checkpoint: str | os.PathLike[str], round: int, fork: bool
) -> dict[str, Any]:
    """Return the history of a run that continues from a checkpoint.

    Args:
        former: the entry about the run in the checkpoint.
        here: the same entry of a checkpoint of this run.
        checkpoint: path of the checkpoint, as the user wrote it.
        round: number of complete rounds in the checkpoint.
        fork: True if this is a new run.
    """
    changed = changes(former, here)
    if fork:
        return {FORKED: {"checkpoint": os.fspath(checkpoint), "round": round, "changed": changed}}
    history: dict[str, Any] = dict(former.get("history", {}))
    if changed:
        history[CHANGED] = [*history.get(CHANGED, []), {"round": round, "changed": changed}]
    return history


def config_text(config: dict[str, Any]) -> str:
    """Format a config as YAML."""
    return dump_yaml(config)


def deciding(config: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a config that decides the numbers of a round.

    Options about the length of a run, its files and its devices are left out.

    Args:
        config: the resolved config.

    Examples:
        >>> deciding({"trainer": {"max_rounds": 5, "precision": "16-mixed"}, "monitors": ["Fairness"]})
        {'trainer': {'precision': '16-mixed'}}
    """
    trainer = {key: value for key, value in (config.get("trainer") or {}).items() if key not in _EXECUTION_OPTIONS}
    return {**{key: value for key, value in config.items() if key not in _NOT_DECIDING}, "trainer": trainer}


def settings_text(config: dict[str, Any] | None) -> str:
    """Format the deciding part of a config for a checkpoint; empty without a config.

    It is YAML, because a value may be of a type that a checkpoint cannot hold.
    """
    if config is None:
        return ""
    return config_text(deciding(config))


def check_history(path: str, content: dict[str, Any]) -> None:
    """Check that the history in a config has the form that runs write.

    Args:
        path: path of the config, for the message.
        content: content of the config.

    Raises:
        UserError: it has another form; the message names the file and the key.
    """
    parent, steps = content.get(FORKED, {"round": 0}), content.get(CHANGED, [])
    for key, entries in ((FORKED, [parent]), (CHANGED, steps if isinstance(steps, list) else [None])):
        for entry in entries:
            about = entry if isinstance(entry, dict) else {}
            changed = about.get("changed", {})
            pairs = isinstance(changed, dict) and all(isinstance(v, list) and len(v) == 2 for v in changed.values())
            if not pairs or not isinstance(about.get("round"), int):
                raise UserError(f"{path}: {key} is a note that runs write; leave it as it was, or remove it")


def changes(former: dict[str, Any], here: dict[str, Any]) -> dict[str, list[Any]]:
    """Return the settings that differ between two runs, by option, as `[former, present]`; None for a missing value.

    Args:
        former: entries of the earlier run: `settings` (YAML), `topology` (its identity) and `code` (hashes of sources).
        here: the same entries of this run.

    Examples:
        >>> changes({"settings": "model: {local_epochs: 5}"}, {"settings": "model: {local_epochs: 1}"})
        {'model.local_epochs': [5, 1]}
    """
    have_configs = bool(former.get("settings") and here.get("settings"))
    theirs, ours = (dict(_leaves(_settings(about, have_configs))) for about in (former, here))
    changed = {k: _plain([theirs.get(k), ours.get(k)]) for k in {**theirs, **ours} if theirs.get(k) != ours.get(k)}
    before, now = (about.get(CODE) or {} for about in (former, here))
    changed |= {f"{CODE}.{name}": [before.get(name), now.get(name)] for name in differing(before, now)}
    same_name = not any(name.split(".")[0] == "topology" for name in changed)
    if have_configs and same_name and former.get("topology") != here.get("topology"):
        # the name in the config is the same, but the content of its file has changed
        changed["topology"] = _plain([former.get("topology"), here.get("topology")])
    return changed


def in_words(changed: dict[str, list[Any]]) -> str:
    """Describe changed settings in a phrase.

    Args:
        changed: `[former, present]` by option, as `changes` returns them.

    Examples:
        >>> in_words({"model.local_epochs": [5, 1]})
        'model.local_epochs from 5 to 1'
    """
    shown = {name: ["null" if value is None else value for value in pair] for name, pair in changed.items()}
    modules = [name.removeprefix(f"{CODE}.") for name in shown if name.startswith(f"{CODE}.")]
    settings = [
        f"{name} from {before} to {after}" for name, (before, after) in shown.items() if not name.startswith(f"{CODE}.")
    ]
    return ", ".join([*settings, *([f"the source of {enumerated(modules)}"] if modules else [])])


def _settings(about: dict[str, Any], has_config: bool) -> dict[str, Any]:
    """Return the settings that decide the numbers of a run, from its config or else from the entries about it."""
    if not has_config:
        return {key: about.get(key) for key in _WITHOUT_CONFIG}
    settings: dict[str, Any] = yaml.safe_load(about["settings"])
    return settings


def _plain(value: Any) -> Any:
    """Convert a value to types that JSON has; any other becomes a text."""
    return json.loads(json.dumps(value, default=str))


def _leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of a nested mapping, each with the dotted name of its option; lists are values."""
    if not isinstance(value, dict) or not value:
        yield name, value
        return
    for key, inner in value.items():
        if key == "init_args" and not inner:
            continue
        part = name if key in ("init_args", "class_path") else f"{name}.{key}".lstrip(".")
        yield from _leaves(inner, part)
