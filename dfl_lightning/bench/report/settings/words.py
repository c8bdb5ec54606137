"""Settings in the names of methods: which ones tell methods apart, in which order, and in which words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dfl_lightning.checkpoints.history import changes as changes_of

_LONGEST = 40
"""Letters of a name with all settings that differ; if one is longer, names have only those that tell them apart."""

_FIRST = (
    *("topology", "selection", "threshold", "substitution", "aggregation", "dropout", "outgoing", "objective"),
    "prediction",
)
"""Groups whose settings come first; those of training and data follow, and those that change no model come last."""


def place_of(group: str) -> int:
    """Where a setting stands among others: policies first, then those of training and data.

    Args:
        group: first part of its name.
    """
    return _FIRST.index(group) if group in _FIRST else len(_FIRST) + (group not in ("model", "data", "trainer"))


def in_names(texts: Sequence[str]) -> list[str]:
    """The settings of each method in which some of them differ, in words: as many as its name has room for.

    Args:
        texts: the settings of at least two methods.
    """
    settings = [{"settings": text} for text in texts]
    values: list[dict[str, Any]] = [{} for _ in texts]
    for number, other in enumerate(settings[1:], 1):
        for key, (here, first) in changes_of(other, settings[0]).items():
            values[number][key] = here
            for before in values:
                before.setdefault(key, first)
    keys = [key for key in values[0] if key.rpartition(".")[0] not in values[0]]  # arguments go with their class
    keys.sort(key=lambda key: place_of(key.partition(".")[0]))
    keys = [key for key in keys if place_of(key.partition(".")[0]) <= len(_FIRST)] or keys
    shown = [", ".join(_word(key, of_method[key]) for key in keys) for of_method in values]
    if max(map(len, shown)) <= _LONGEST:
        return shown
    telling: list[str] = []
    while _number_of_kinds(values, telling) < _number_of_kinds(values, keys):
        telling.append(max(keys, key=lambda key: _number_of_kinds(values, [*telling, key])))
    more = ", …" if len(telling) < len(keys) else ""
    return [", ".join(_word(key, of_method[key]) for key in telling) + more for of_method in values]


def _number_of_kinds(values: Sequence[dict[str, Any]], keys: Sequence[str]) -> int:
    return len({tuple(repr(of_method[key]) for key in keys) for of_method in values})


def _word(key: str, value: Any) -> str:
    return f"{key.rpartition('.')[2]} = {_short(value)}"


def _short(value: Any) -> str:
    text = "none" if value is None else str(value).rpartition(".")[2] if isinstance(value, str) else str(value)
    return text if len(text) <= 24 else f"{text[:23]}…"
