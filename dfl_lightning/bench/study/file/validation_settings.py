"""The settings of a run that give its clients validation data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def said_by(config: Mapping[str, Any]) -> bool | None:
    """Return True if a run with this resolved config has validation data; None if the config does not decide it.

    It does not if the data have no option `val_fraction`, or are divided by a split file.

    Examples:
        >>> said_by({"data": {"init_args": {"val_fraction": 0.2}}}), said_by({"data": {"class_path": "mine.Data"}})
        (True, None)
    """
    data = config.get("data")
    arguments = (data.get("init_args") or {}) if isinstance(data, Mapping) else {}
    if "val_fraction" not in arguments or arguments.get("split"):
        return None
    return bool(arguments["val_fraction"])
