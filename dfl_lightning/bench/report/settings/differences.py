"""The settings in which methods differ: what decides their numbers, a row a setting, a cell a method."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from dfl_lightning.bench.report.methods import Method, settings_of, sources_of_run
from dfl_lightning.bench.report.settings.words import place_of

_ABSENT = "–"
"""A method that has no such setting."""


def differences(methods: Sequence[Method]) -> dict[str, list[str]]:
    """The settings in which methods differ, with the value of each method, in words.

    Where all methods have the same class, its arguments that differ are settings of their own; otherwise each method's
    value is its class with all arguments. The source of an own module that all methods use is a setting; seeds,
    monitors, names, folders and how a run is computed are none.

    Args:
        methods: to compare, each by its first run.

    Examples:
        >>> differences([])
        {}
    """
    configs = [settings_of(method.runs[0]) for method in methods]
    sources = [sources_of_run(method.runs[0]) for method in methods]
    common = set.intersection(*map(set, sources)) if sources else set()
    for config, own in zip(configs, sources, strict=True):
        config["sources"] = {name: own[name] for name in sorted(common)}
    found = sorted(differing(configs, ""), key=lambda row: place_of(row[0].partition(".")[0]))
    return {name: [words(value) for value in values] for name, values in found}


def differing(values: Sequence[Any], name: str) -> Iterator[tuple[str, list[Any]]]:
    """Yield the innermost settings that differ, as far as all methods have the same classes.

    Args:
        values: a setting, or a mapping of settings, of each method.
        name: dotted, of this setting; empty for a whole config.
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


def words(value: Any) -> str:
    """Say a value for people.

    Args:
        value: of a config.

    Examples:
        >>> words({"class_path": "x.AFIND", "init_args": {"nu": 0.2, "rule": "ratio", "layer": None}})
        'AFIND: nu = 0.2, rule = ratio'
        >>> words({"class_path": "x.Gossip"}), words(None), words([0, 90]), words(True)
        ('Gossip', '–', '0, 90', 'true')
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
    return ": ".join(part for part in (str(value["class_path"]).rpartition(".")[2], listed) if part)
