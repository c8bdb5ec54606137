"""What is said of a run's own code: the classes and functions of the user that it uses, as a later run finds them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dfl_lightning.utils.code.source_code import UNKNOWN, differing
from dfl_lightning.utils.errors import UserError
from dfl_lightning.utils.words import enumerated

CODE = "code"
"""The folder of a run with the sources of its own code, and the key of its config with their hashes, by module."""


def code_in(content: Mapping[str, Any], where: str) -> dict[str, str]:
    """Read the hashes of a config.

    Args:
        content: of the config.
        where: its path, for the message.

    Raises:
        UserError: they are not in the form that runs write.
    """
    found = content.get(CODE) or {}
    if not isinstance(found, dict) or not all(isinstance(text, str) for pair in found.items() for text in pair):
        raise UserError(f"{where}: {CODE} is a note that runs write, a hash for each module; leave it as it was")
    return dict(found)


def about_changes(where: str, before: Mapping[str, str], now: Mapping[str, str]) -> str:
    """Say how the code of a run differs from the present one; empty where it does not.

    Args:
        where: the earlier run's config or checkpoint.
        before: hashes of the earlier run, by module.
        now: those of this one.

    Examples:
        >>> about_changes("runs/a/config.yaml", {"mine": "a1", "nets": "b2"}, {"mine": "c3", "nets": "b2"})
        'runs/a/config.yaml is of a run with other code: mine has changed'
    """
    names = differing(before, now)
    unknown = [name for name in names if UNKNOWN in (before[name], now[name])]
    changed = [name for name in names if name not in unknown]
    said = [f"{enumerated(changed)} {'has' if len(changed) == 1 else 'have'} changed"] if changed else []
    if unknown:
        said.append(f"the source of {enumerated(unknown)} is not known, so that it cannot be compared")
    if changed:
        return f"{where} is of a run with other code: {', and '.join(said)}"
    return f"{where} may be of a run with other code: {said[0]}" if said else ""
