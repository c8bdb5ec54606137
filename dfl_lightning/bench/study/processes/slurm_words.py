"""The arguments of `dfl-study run` that begin with `--slurm.`: options of submitit and of SLURM."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml

from dfl_lightning.utils.errors import UserError

PREFIX = "--slurm."


def split_options(words: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """Separate the arguments that begin with `--slurm.` from the others; return the others, and these as options.

    Raises:
        UserError: an option has no value.

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
    """Parse a number, a truth value or a list; keep all else as text, also what YAML reads as a time or date."""
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        return text
    return value if isinstance(value, (int, float, bool, list)) and ":" not in text else text
