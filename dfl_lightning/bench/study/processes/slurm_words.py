"""The words of `dfl-study run` that begin with `--slurm.`: options of submitit's and of SLURM's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml

from dfl_lightning.utils.errors import UserError

PREFIX = "--slurm."


def split_options(words: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """The words of a command without those that begin with `--slurm.`, and these as options.

    Raises:
        UserError: an option without a value.

    Examples:
        >>> split_options(["run", "mine", "--slurm.timeout_min", "240", "-j", "8", "--slurm.partition=gpu"])
        (['run', 'mine', '-j', '8'], {'timeout_min': 240, 'partition': 'gpu'})
    """
    kept: list[str] = []
    options: dict[str, Any] = {}
    left = iter(words)
    for word in left:
        if not word.startswith(PREFIX):
            kept.append(word)
            continue
        name, equals, value = word.removeprefix(PREFIX).partition("=")
        if not equals:
            value = next(left, "")
        if not name or not value or (not equals and value.startswith("-")):
            raise UserError(f"{PREFIX}{name}: give it a value, as in --slurm.partition gpu")
        options[name] = _value(value)
    return kept, options


def _value(text: str) -> Any:
    """A number, a list or a word; what YAML would take for a time of day or a date is a word too."""
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        return text
    return value if isinstance(value, (int, float, bool, list)) and ":" not in text else text
