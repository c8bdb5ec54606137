"""Settings of thousands of runs, read from their configs: equal parts of configs are parsed and kept once."""

from __future__ import annotations

import math
import re
from typing import Any

import yaml

from dfl_lightning.bench.report.method_names import class_name

_READER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_NOTES = ("code", "class_folders", "forked_from", "changed_on_resume", "unknown", "not_makeable")
"""Keys of a config that are notes about a run, not settings."""

_BETWEEN = re.compile(r"\n(?=[^\s\-#])")
"""End of each part of a config: the next line is a key without indentation."""

_UNUSUAL = re.compile(r"[&*!]|[-?][ \t]+[-?][ \t]|[\[{].*[\[{].*[\[{]")
"""References, tags and nesting within a line: a part that contains them is read by the slower, bounded parser."""

_MOST = 20_000
"""Largest number of letters of a part that is parsed without the bounded parser."""


class SettingsReader:
    """Reader of configs as flat settings.

    Runs of a sweep differ in a line or two of a hundred, and parsing YAML takes milliseconds.

    Attributes:
        parts: settings of each different part of the configs, a number or a text by its dotted name. A class is a
            setting with its short name, and its arguments are further ones. Settings that are null are left out.
    """

    def __init__(self) -> None:
        self.parts: list[dict[str, Any]] = []
        self._numbers: dict[str, int] = {}

    def read(self, text: str) -> list[int]:
        """Read a config and return the numbers of its parts.

        Args:
            text: content of a config.yaml.

        Raises:
            ValueError: the text is not the YAML of a config.

        Examples:
            >>> reader = SettingsReader()
            >>> reader.read("selection: {class_path: Gossip, init_args: {k: 5, within: null}}")
            [0]
            >>> reader.parts
            [{'selection': 'Gossip', 'selection.k': 5}]
        """
        try:
            return [self._numbers[part] if part in self._numbers else self._add(part) for part in _BETWEEN.split(text)]
        except (ValueError, yaml.YAMLError):
            return [self._keep(text, flat(_parse(text)))]

    def _add(self, part: str) -> int:
        """Parse a part of a config."""
        is_usual = len(part) <= _MOST and not _UNUSUAL.search(part)
        content = yaml.load(part, Loader=_READER) if is_usual else _parse(part)
        if not isinstance(content, dict) or len(content) != 1:
            raise ValueError("the part is not one key of a config")
        return self._keep(part, flat(content))

    def _keep(self, text: str, settings: dict[str, Any]) -> int:
        if text not in self._numbers:
            self.parts.append(settings)
            self._numbers[text] = len(self.parts) - 1
        return self._numbers[text]


def _parse(text: str) -> dict[str, Any]:
    """Parse a text of any origin with bounded time and memory.

    Raises:
        ValueError: the text is not a mapping in YAML.
    """
    from dfl_lightning.utils.storage.yaml_files import parse  # imported here, because it takes time to import

    try:
        content = parse(text)
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError("it is not YAML") from error
    if not isinstance(content, dict):
        raise ValueError("it is not a mapping")
    return content


def flat(config: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a parsed config, see `SettingsReader`.

    Args:
        config: a config, or a part of one.
    """
    found: dict[str, Any] = {}
    for key, value in config.items():
        if key not in _NOTES:
            _add(found, str(key), value)
    return found


def _add(found: dict[str, Any], name: str, value: Any) -> None:
    """Add a setting and those within it."""
    if isinstance(value, dict) and "class_path" in value:
        found[name] = plain(_short(value))
        value = value.get("init_args") or {}
    if isinstance(value, dict):
        for key, inner in value.items():
            _add(found, f"{name}.{key}", inner)
    elif isinstance(value, list):
        if value:
            found[name] = plain(", ".join(_short(entry) for entry in value))
    elif value is not None:
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        found[name] = plain(value if is_number else _short(value))


def _short(value: Any) -> str:
    """Write a value in a few words; a class is its short name."""
    if isinstance(value, dict):
        if "class_path" in value:
            return class_name(str(value["class_path"]))
        return ", ".join(f"{key} = {_short(inner)}" for key, inner in value.items())
    return str(value).lower() if isinstance(value, bool) else str(value)


def plain(value: Any) -> float | int | str:
    """Return a value that JSON has; texts are cut where no reader would read on.

    Args:
        value: number, text, or anything else.

    Examples:
        >>> plain(0.5), plain(float("nan")), len(plain("x" * 1000))
        (0.5, 'nan', 300)
    """
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return value if math.isfinite(value) and abs(value) < 1e300 else str(value)
    return str(value)[:300]
