"""Settings in the names of methods: those in which methods differ, in order, and in short words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dfl_lightning.bench.report.method_names import class_name
from dfl_lightning.checkpoints.history import changes as changes_of

_LONGEST = 40
"""Largest number of letters of all settings that differ; if one method has more, names get only as many as needed."""

_FIRST = (
    *("topology", "selection", "threshold", "substitution", "aggregation", "dropout", "outgoing", "objective"),
    "prediction",
)
"""Groups whose settings come first; those of training and data follow, and then those that do not change models."""


def place_of(group: str) -> int:
    """Return the rank of a setting among others: policies first, then training and data, then the rest.

    Args:
        group: first part of the setting's name.
    """
    return _FIRST.index(group) if group in _FIRST else len(_FIRST) + (group not in ("model", "data", "trainer"))


def in_names(texts: Sequence[str]) -> list[str]:
    """Describe for each method the settings in which methods differ, for its name.

    If that is too long for a name, only as many settings as distinguish the methods are used, followed by an ellipsis.

    Args:
        texts: settings of at least two methods, as `config_text` writes them.
    """
    settings = [{"settings": text} for text in texts]
    values: list[dict[str, Any]] = [{} for _ in texts]
    for number, other in enumerate(settings[1:], 1):
        for key, (value, first) in changes_of(other, settings[0]).items():
            values[number][key] = value
            for of_method in values:
                of_method.setdefault(key, first)
    keys = [key for key in values[0] if key.rpartition(".")[0] not in values[0]]  # a class includes its arguments
    keys.sort(key=lambda key: place_of(key.partition(".")[0]))
    keys = [key for key in keys if place_of(key.partition(".")[0]) <= len(_FIRST)] or keys
    shown = [", ".join(_word(key, of_method[key]) for key in keys) for of_method in values]
    if max(map(len, shown)) <= _LONGEST:
        return shown
    needed: list[str] = []
    while _number_of_kinds(values, needed) < _number_of_kinds(values, keys):
        needed.append(max(keys, key=lambda key: _number_of_kinds(values, [*needed, key])))
    more = ", …" if len(needed) < len(keys) else ""
    return [", ".join(_word(key, of_method[key]) for key in needed) + more for of_method in values]


def _number_of_kinds(values: Sequence[dict[str, Any]], keys: Sequence[str]) -> int:
    """Count the different combinations of values that methods have for the keys."""
    return len({tuple(repr(of_method[key]) for key in keys) for of_method in values})


def _word(key: str, value: Any) -> str:
    return f"{key.rpartition('.')[2]} = {_short(value)}"


def _short(value: Any) -> str:
    text = "none" if value is None else class_name(value) if isinstance(value, str) else str(value)
    return text if len(text) <= 24 else f"{text[:23]}…"
