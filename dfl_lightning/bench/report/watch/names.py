"""Names of methods for the table of runs, the same as on the pages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dfl_lightning.bench.report.method_names import base_name
from dfl_lightning.bench.report.watch.rows import RunRow
from dfl_lightning.runs.reading import Run
from dfl_lightning.utils.errors import UserError

_IRRELEVANT = (
    "seed_everything",
    "trainer",
    "data.",
    "model.optimizer",
    "model.network",
    "monitors",
    "rounds",
    "seconds",
)
"""Beginnings of settings that no method is named after."""


class _BriefRun(Run):
    """A run whose summary is enough to name its method, without its tables."""

    def _table(self, name: str) -> dict[str, np.ndarray]:
        if name == "metrics" and self.summary:
            received = self.summary.get("received_per_client", {}).get("bytes")
            return {"bytes_received": np.array([1.0 if received is None else float(received)])}
        return super()._table(name)


def naming(parts: Sequence[dict[str, Any]]) -> Callable[[RunRow], str]:
    """Return a function that names the method of a run; runs with the same policies are named once.

    Args:
        parts: settings of the parts of all configs, which may grow later.
    """
    names: dict[Any, str] = {}
    relevant: dict[int, str] = {}

    def words(number: int) -> str:
        """Write the settings of a part that may name a method."""
        if number not in relevant:
            found = {key: value for key, value in parts[number].items() if not key.startswith(_IRRELEVANT)}
            relevant[number] = repr(found)
        return relevant[number]

    def name(row: RunRow) -> str:
        try:
            received = row.summary.get("received_per_client")
            is_silent = isinstance(received, dict) and received.get("bytes") == 0
            about = (is_silent, row.summary.get("topology"), row.summary.get("policies"))
            key = repr((*map(words, row.parts), *about)) if row.parts and row.summary else row.folder
            if key not in names:
                names[key] = base_name(_BriefRun(row.folder))
            return names[key]
        except (UserError, OSError, ValueError, TypeError, AttributeError, KeyError):  # of a damaged or foreign folder
            return ""

    return name
