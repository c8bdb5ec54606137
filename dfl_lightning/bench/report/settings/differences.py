"""Table of the settings in which methods differ: a row for each setting, a cell for each method."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from dfl_lightning.bench.report.method_names import class_name
from dfl_lightning.bench.report.methods import Method, settings_of, sources_of_run
from dfl_lightning.bench.report.settings.words import place_of
from dfl_lightning.runs.reading import Run

_ABSENT = "–"
"""Cell of a method without this setting."""


def differences(methods: Sequence[Method]) -> dict[str, list[str]]:
    """Find the settings in which methods differ, and return the value of each method in words.

    If all methods have the same class in a group, each argument that differs is a setting; otherwise the setting is the
    class with all arguments. The version of a user's own module is a setting if all methods use the module. Seeds,
    monitors, names, folders and options of the computation are not compared.

    Args:
        methods: methods to compare; the first run of each counts.

    Examples:
        >>> differences([])
        {}
    """
    configs = [settings_of(method.runs[0]) for method in methods]
    sources = [sources_of_run(method.runs[0]) for method in methods]
    common = set.intersection(*map(set, sources)) if sources else set()
    for config, versions in zip(configs, sources, strict=True):
        config["sources"] = {name: versions[name] for name in sorted(common)}
    rows = sorted(differing(configs, ""), key=lambda row: place_of(row[0].partition(".")[0]))
    return {name: [words(value) for value in values] for name, values in rows}


def differing(values: Sequence[Any], name: str) -> Iterator[tuple[str, list[Any]]]:
    """Yield the name and values of each setting that differs.

    Arguments of a class are compared one by one if all methods have the same class; otherwise the classes differ.

    Args:
        values: a setting, or a mapping of settings, of each method.
        name: dotted name of this setting; empty for a whole config.
    """
    if all(value == values[0] for value in values[1:]):
        return
    mappings = [value for value in values if isinstance(value, dict)]
    classes = {value.get("class_path") for value in mappings}
    if len(mappings) < len(values) or len(classes) > 1:
        yield name, list(values)
        return
    inner = mappings if classes == {None} else [value.get("init_args") or {} for value in mappings]
    for key in dict.fromkeys(key for value in inner for key in value):
        yield from differing([value.get(key) for value in inner], f"{name}.{key}".lstrip("."))


def all_settings(run: Run) -> dict[str, str]:
    """Return all settings of a run in words, policies first; a class has one entry with its arguments.

    Args:
        run: run with a config; the result is empty without one.
    """
    if not run.config:
        return {}
    rows = sorted(_entries(settings_of(run), ""), key=lambda row: place_of(row[0].partition(".")[0]))
    return {name: words(value) for name, value in rows if value not in (None, {}, [])}


def _entries(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield the dotted name and the value of each setting, with classes whole."""
    if isinstance(value, dict) and value and "class_path" not in value:
        for key, inner in value.items():
            yield from _entries(inner, f"{name}.{key}".lstrip("."))
    else:
        yield name, value


def words(value: Any) -> str:
    """Write a value of a config in words.

    Args:
        value: a class with arguments is written with its short name.

    Examples:
        >>> words({"class_path": "dfl_lightning.callbacks.AFIND", "init_args": {"nu": 0.2, "layer": None}})
        'AFIND: nu = 0.2'
        >>> words({"class_path": "Gossip"}), words({"class_path": "mine.Gossip"}), words({"class_path": "mine.Ours"})
        ('Gossip', 'mine.Gossip', 'Ours')
        >>> words(None), words([0, 90]), words(True)
        ('–', '0, 90', 'true')
    """
    if value is None:
        return _ABSENT
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return ", ".join(words(entry) for entry in value)
    if not isinstance(value, dict):
        return str(value)
    arguments = value.get("init_args") or {} if "class_path" in value else value
    listed = ", ".join(f"{key} = {words(inner)}" for key, inner in arguments.items() if inner is not None)
    if "class_path" not in value:
        return listed
    return ": ".join(part for part in (class_name(str(value["class_path"])), listed) if part)
