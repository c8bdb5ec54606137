"""Whether the settings of a run say that its clients have validation data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def said_by(config: Mapping[str, Any]) -> bool | None:
    """Say whether a run of these settings has validation data.

    Args:
        config: resolved.

    Returns:
        None where settings do not decide it: a class of data without the option `val_fraction`, or a split file.

    Examples:
        >>> said_by({"data": {"init_args": {"val_fraction": 0.2}}}), said_by({"data": {"class_path": "mine.Data"}})
        (True, None)
    """
    data = config.get("data")
    arguments = (data.get("init_args") or {}) if isinstance(data, Mapping) else {}
    if "val_fraction" not in arguments or arguments.get("split"):
        return None
    return bool(arguments["val_fraction"])
