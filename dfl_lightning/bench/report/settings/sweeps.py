"""Sweeps: methods that differ in one or two numeric settings, as lines and as grids of points."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dfl_lightning.bench.report.comparable import comparable
from dfl_lightning.bench.report.method_names import base_name, class_name
from dfl_lightning.bench.report.methods import Method, settings_of, sources_of_run
from dfl_lightning.checkpoints.history import UNKNOWN_SETTINGS
from dfl_lightning.checkpoints.history import config_text as as_text

LEAST = 2
"""Least number of different values of a setting that are a sweep."""

_WORDS = 2
"""Largest number of settings other than numbers that tell lines of one name apart."""


@dataclass(frozen=True)
class SweepLine:
    """Methods that differ in one setting only.

    Attributes:
        name: name of the methods without that setting, unique in its sweep.
        methods: method by value of the setting, ascending.
    """

    name: str
    methods: dict[float, Method]


@dataclass(frozen=True)
class Grid:
    """Methods that differ in two settings only.

    Attributes:
        name: name of the methods without these settings, unique among the grids of the same settings.
        methods: method by the values of both settings.
    """

    name: str
    methods: dict[tuple[float, float], Method]


def sweeps(methods: Sequence[Method]) -> dict[str, list[SweepLine]]:
    """Find the numeric settings over which methods of a task were swept, and the lines of each.

    A line has two values or more; methods without such a partner are in no line.

    Args:
        methods: methods of a task.

    Returns:
        Lines by the dotted name of the setting; empty without a sweep.
    """
    numbers = _numbers(methods)
    found = {}
    for setting in _settings(numbers.values()):
        groups: dict[str, dict[float, Method]] = {}
        for method in methods:
            own = numbers[method.full_name]
            if setting in own:
                groups.setdefault(_rest(method, own, [setting]), {})[own[setting]] = method
        kept = [dict(sorted(group.items())) for group in groups.values() if _is_line(group)]
        if kept:
            names = _names([next(iter(group.values())) for group in kept], numbers, [setting])
            found[setting] = [SweepLine(name, group) for name, group in zip(names, kept, strict=True)]
    return found


def grids(methods: Sequence[Method]) -> dict[tuple[str, str], list[Grid]]:
    """Find the pairs of numeric settings over which methods of a task were swept together.

    Args:
        methods: methods of a task.

    Returns:
        Grids by the dotted names of both settings. A grid has two values or more of each, and more methods than a line
        of each setting has; empty without any.
    """
    numbers = _numbers(methods)
    settings, found = _settings(numbers.values()), {}
    for at, first in enumerate(settings):
        for second in settings[at + 1 :]:
            groups: dict[str, dict[tuple[float, float], Method]] = {}
            for method in methods:
                own = numbers[method.full_name]
                if first in own and second in own:
                    key = _rest(method, own, [first, second])
                    groups.setdefault(key, {})[own[first], own[second]] = method
            kept = [group for group in groups.values() if _is_grid(list(group))]
            if kept:
                names = _names([next(iter(group.values())) for group in kept], numbers, [first, second])
                found[first, second] = [Grid(name, group) for name, group in zip(names, kept, strict=True)]
    return found


def _is_line(group: Mapping[float, Method]) -> bool:
    """Return True for two values or more; a method next to itself without neighbours does not count."""
    return len(group) >= LEAST + any(method.is_local for method in group.values())


def _is_grid(places: Sequence[tuple[float, float]]) -> bool:
    sides = [len({place[side] for place in places}) for side in (0, 1)]
    return min(sides) >= LEAST and len(places) >= sum(sides)


def _settings(numbers: Any) -> list[str]:
    """List the settings with two values or more, in the order in which methods have them."""
    values: dict[str, set[float]] = {}
    for own in numbers:
        for name, value in own.items():
            values.setdefault(name, set()).add(value)
    return [name for name, found in values.items() if len(found) >= LEAST]


def _numbers(methods: Sequence[Method]) -> dict[str, dict[str, float]]:
    """Return the numeric settings of each method that can be compared, by its full name and by dotted names."""
    compared = {method.full_name for method in comparable(methods)[0]}
    found: dict[str, dict[str, float]] = {}
    for method in methods:
        config = method.runs[0].config
        is_known = method.full_name in compared and config and not config.get(UNKNOWN_SETTINGS)
        found[method.full_name] = dict(_leaves(settings_of(method.runs[0]), "")) if is_known else {}
    return found


def _leaves(value: Any, name: str) -> Iterator[tuple[str, float]]:
    """Yield the dotted name and value of each number of a config; the arguments of a class have no name in between."""
    if isinstance(value, Mapping):
        inner = value.get("init_args") or {} if "class_path" in value else value
        for key, one in inner.items():
            yield from _leaves(one, f"{name}.{key}".lstrip("."))
    elif isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
        yield name, float(value)


def _rest(method: Method, own: Mapping[str, float], without: Sequence[str]) -> str:
    """Return a text that is equal for methods that differ in these settings only."""
    run = method.runs[0]
    settings = _without(settings_of(run), "", set(without))
    return f"{sorted(set(own))} {sources_of_run(run)} {method.column} {as_text(settings)}"


def _without(value: Any, name: str, left_out: set[str]) -> Any:
    """Copy a config without some settings, by the names that `_leaves` gives them."""
    if not isinstance(value, Mapping):
        return value
    if "class_path" in value:
        return {**value, "init_args": _without(value.get("init_args") or {}, name, left_out)}
    return {
        key: _without(one, f"{name}.{key}".lstrip("."), left_out)
        for key, one in value.items()
        if f"{name}.{key}".lstrip(".") not in left_out
    }


def _names(firsts: Sequence[Method], numbers: Mapping[str, Mapping[str, float]], without: Sequence[str]) -> list[str]:
    """Name lines after their methods, with the other numeric settings in which lines of one name differ."""
    bases = [_base(method) for method in firsts]
    names = []
    for base, method in zip(bases, firsts, strict=True):
        alike = [numbers[other.full_name] for one, other in zip(bases, firsts, strict=True) if one == base]
        own = numbers[method.full_name]
        differing = [key for key in own if key not in without and len({other.get(key) for other in alike}) > 1]
        words = ", ".join(f"{short(key)} = {own[key]:g}" for key in differing)
        names.append(f"{base} ({words})" if words else base)
    names = _told_apart(names, firsts)
    return [
        f"{name} ({names[: at + 1].count(name)})" if names.count(name) > 1 else name for at, name in enumerate(names)
    ]


def _told_apart(names: Sequence[str], methods: Sequence[Method]) -> list[str]:
    """Add to equal names the words among their methods' settings that differ, such as that of a similarity."""
    words = [dict(_words(settings_of(method.runs[0]), "")) for method in methods]
    found = []
    for name, own in zip(names, words, strict=True):
        alike = [other for one, other in zip(names, words, strict=True) if one == name]
        differing = [key for key in own if len({other.get(key) for other in alike}) > 1]
        said = ", ".join(f"{short(key)} = {own[key]}" for key in differing[:_WORDS])
        found.append(f"{name} ({said})" if said else name)
    return found


def _words(value: Any, name: str) -> Iterator[tuple[str, str]]:
    """Yield the dotted name and value of each setting with a value other than a number, named as `_leaves` does."""
    if isinstance(value, Mapping):
        if "class_path" in value:
            yield name, class_name(str(value["class_path"]))
        inner = value.get("init_args") or {} if "class_path" in value else value
        for key, one in inner.items():
            yield from _words(one, f"{name}.{key}".lstrip("."))
    elif value is None or isinstance(value, (str, bool)):
        yield name, value if isinstance(value, str) else "none" if value is None else str(value).lower()


def _base(method: Method) -> str:
    """Name a method without its settings; one whose clients select no neighbours is named after its selection."""
    name = base_name(method.runs[0])
    selection = method.runs[0].config.get("selection")
    if method.is_local and isinstance(selection, Mapping) and "class_path" in selection:
        return class_name(str(selection["class_path"]))
    return name


def short(setting: str) -> str:
    """Return the last part of a setting's dotted name.

    Examples:
        >>> short("model.optimizer.lr")
        'lr'
    """
    return setting.rpartition(".")[2]
