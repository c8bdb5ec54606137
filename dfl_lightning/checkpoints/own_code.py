"""Notes on the user's own code in a run: hashes of its modules, and their comparison with a later run's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dfl_lightning.utils.code.source_code import UNKNOWN, differing
from dfl_lightning.utils.errors import UserError
from dfl_lightning.utils.words import enumerated

CODE = "code"
"""Name of a run's folder with the sources of its own code, and key of its config with their hashes, by module."""


def code_in(content: Mapping[str, Any], where: str) -> dict[str, str]:
    """Read the hashes of the user's code from a config.

    Args:
        content: content of the config.
        where: path of the config, for the message.

    Raises:
        UserError: they do not have the form that runs write.
    """
    hashes = content.get(CODE) or {}
    if not isinstance(hashes, dict) or not all(isinstance(text, str) for pair in hashes.items() for text in pair):
        raise UserError(f"{where}: {CODE} is a note that runs write, a hash for each module; leave it as it was")
    return dict(hashes)


def about_changes(where: str, before: Mapping[str, str], now: Mapping[str, str]) -> str:
    """Describe how the code of a run differs from the present one; empty if it does not.

    Args:
        where: the earlier run's config or checkpoint.
        before: hashes of the earlier run's code, by module.
        now: hashes of the present code, by module.

    Examples:
        >>> about_changes("runs/a/config.yaml", {"mine": "a1", "nets": "b2"}, {"mine": "c3", "nets": "b2"})
        'runs/a/config.yaml is of a run with other code: mine has changed'
    """
    names = differing(before, now)
    unknown = [name for name in names if UNKNOWN in (before[name], now[name])]
    changed = [name for name in names if name not in unknown]
    parts = [f"{enumerated(changed)} {'has' if len(changed) == 1 else 'have'} changed"] if changed else []
    if unknown:
        parts.append(f"the source of {enumerated(unknown)} is not known, so that it cannot be compared")
    if changed:
        return f"{where} is of a run with other code: {', and '.join(parts)}"
    return f"{where} may be of a run with other code: {parts[0]}" if parts else ""
