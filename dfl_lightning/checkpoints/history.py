"""Where a run comes from: the checkpoint that it was forked from, and the settings that a resume has changed.

The config of such a run does not repeat it from round 0. So both are kept in its checkpoints, and are written into its
`config.yaml` and `summary.json`.
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
from dfl_lightning.utils.storage.yaml_files import CLASS_FOLDERS
from dfl_lightning.utils.words import enumerated

FORKED, CHANGED = "forked_from", "changed_on_resume"
"""Keys of a history: `{checkpoint, round, changed}`, and a list of `{round, changed}`."""

UNKNOWN_SETTINGS, NOT_MAKEABLE = "unknown", "not_makeable"
"""Keys of the config of a run from Python: objects whose arguments are not known, and known ones that no text makes."""

_WHAT_IS_SEEN = ("monitors", CLASS_FOLDERS, FORKED, CHANGED, CODE)
"""Keys of a config that change no number of a round, or that are notes about a run."""

_HOW_IT_RUNS = {
    *("max_rounds", "max_epochs", "max_time", "fast_dev_run", "accelerator", "devices", "num_nodes", "strategy"),
    *("process_timeout", "default_root_dir", "checkpoint_every", "checkpoints", "keep_comparisons", "logger"),
    *("log_every_n_steps", "profiler", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"),
    *("cohorts", "cuda_graphs", "deterministic", "benchmark", "detect_anomaly", "inference_mode", "barebones"),
    *("num_sanity_val_steps", "enable_autolog_hparams", "model_registry"),
}
"""Options of the trainer that change no number of a round, but for rounding on another accelerator, or where clients
are trained in other groups.
"""

_WITHOUT_CONFIG = ("seed", "data", "topology", "policies")
"""What a checkpoint says about the settings of a run that no command started."""


def resumed_history(
    former: dict[str, Any], here: dict[str, Any], checkpoint: str | os.PathLike[str], round: int, fork: bool
) -> dict[str, Any]:
    """The history of a run that continues from a checkpoint.

    Args:
        former: what the checkpoint says about its run.
        here: what a checkpoint of this run would say.
        checkpoint: its path, as the user wrote it.
        round: complete rounds in it.
        fork: whether this is a new run.
    """
    changed = changes(former, here)
    if fork:
        return {FORKED: {"checkpoint": os.fspath(checkpoint), "round": round, "changed": changed}}
    history: dict[str, Any] = dict(former.get("history", {}))
    if changed:
        history[CHANGED] = [*history.get(CHANGED, []), {"round": round, "changed": changed}]
    return history


def config_text(config: dict[str, Any]) -> str:
    """A configuration as YAML."""
    return yaml.safe_dump(config, sort_keys=False, allow_unicode=True)


def deciding(config: dict[str, Any]) -> dict[str, Any]:
    """The part of a configuration that decides the numbers of a round: without how long, where and on what it runs.

    Args:
        config: resolved.

    Examples:
        >>> deciding({"trainer": {"max_rounds": 5, "precision": "16-mixed"}, "monitors": ["Fairness"]})
        {'trainer': {'precision': '16-mixed'}}
    """
    trainer = {key: value for key, value in (config.get("trainer") or {}).items() if key not in _HOW_IT_RUNS}
    return {**{key: value for key, value in config.items() if key not in _WHAT_IS_SEEN}, "trainer": trainer}


def settings_text(config: dict[str, Any] | None) -> str:
    """What a checkpoint keeps of a configuration: all that decides the numbers; empty where there is none.

    It is YAML, because a value may be of a type that a checkpoint cannot hold.
    """
    if config is None:
        return ""
    return config_text(deciding(config))


def check_history(path: str, content: dict[str, Any]) -> None:
    """Refuse a config whose history is not in the form that runs write.

    Args:
        path: of the config, for the message.
        content: of the config.

    Raises:
        UserError: names the file and the key.
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
    """The settings that differ, by the names of their options, as `[former, present]`; null where one has no value.

    Args:
        former: about the earlier run: `settings` (YAML), `topology` (its identity) and `code` (hashes of sources).
        here: about this one.

    Examples:
        >>> changes({"settings": "model: {local_epochs: 5}"}, {"settings": "model: {local_epochs: 1}"})
        {'model.local_epochs': [5, 1]}
    """
    known = former.get("settings") and here.get("settings")
    theirs, ours = (dict(_leaves(_settings(about, bool(known)))) for about in (former, here))
    found = {k: _plain([theirs.get(k), ours.get(k)]) for k in {**theirs, **ours} if theirs.get(k) != ours.get(k)}
    before, now = (about.get(CODE) or {} for about in (former, here))
    found |= {f"{CODE}.{name}": [before.get(name), now.get(name)] for name in differing(before, now)}
    same_name = not any(name.split(".")[0] == "topology" for name in found)
    if known and same_name and former.get("topology") != here.get("topology"):
        found["topology"] = _plain(
            [former.get("topology"), here.get("topology")]
        )  # the file of that name is another one now
    return found


def in_words(changed: dict[str, list[Any]]) -> str:
    """Changed settings for people.

    Examples:
        >>> in_words({"model.local_epochs": [5, 1]})
        'model.local_epochs from 5 to 1'
    """
    shown = {name: ["null" if value is None else value for value in pair] for name, pair in changed.items()}
    own = [name.removeprefix(f"{CODE}.") for name in shown if name.startswith(f"{CODE}.")]
    said = [
        f"{name} from {before} to {after}" for name, (before, after) in shown.items() if not name.startswith(f"{CODE}.")
    ]
    return ", ".join([*said, *([f"the source of {enumerated(own)}"] if own else [])])


def _settings(about: dict[str, Any], known: bool) -> dict[str, Any]:
    """The part of a run's settings that decides its numbers."""
    if not known:
        return {key: about.get(key) for key in _WITHOUT_CONFIG}
    return deciding(yaml.safe_load(about["settings"]))  # again, for those that an earlier version has kept


def _plain(value: Any) -> Any:
    """The same of the types that JSON has; any other as its text."""
    return json.loads(json.dumps(value, default=str))


def _leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """The values of a nested mapping with the names of their options; lists are values."""
    if not isinstance(value, dict) or not value:
        yield name, value
        return
    for key, inner in value.items():
        if key == "init_args" and not inner:
            continue
        part = name if key in ("init_args", "class_path") else f"{name}.{key}".lstrip(".")
        yield from _leaves(inner, part)
