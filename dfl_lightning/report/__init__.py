"""What a person sees of a run: its folder, the terminal's lines, the summary, charts and a page.

>>> from dfl_lightning import read_run, report
>>> report.__all__[1:3]
['accuracy_by_bytes', 'accuracy_by_time']

The charts need Altair: pip install 'dfl-lightning[report]'.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dfl_lightning.report.charts import (
        accuracy_by_bytes,
        accuracy_by_time,
        client_bands,
        collaboration_graph,
        dropouts,
        found_over_rounds,
        gain_over_local,
        learning_curves,
        link_heatmap,
        similarities,
        sorted_clients,
        who_from_whom,
    )
    from dfl_lightning.report.live import LivePage
    from dfl_lightning.report.writing import write_report

__all__ = [
    "LivePage",
    "accuracy_by_bytes",
    "accuracy_by_time",
    "client_bands",
    "collaboration_graph",
    "dropouts",
    "found_over_rounds",
    "gain_over_local",
    "learning_curves",
    "link_heatmap",
    "similarities",
    "sorted_clients",
    "who_from_whom",
    "write_report",
]


def __getattr__(name: str) -> Any:
    # On first use: a run's own files need none of the libraries that draw.
    if name not in __all__:
        raise AttributeError(f"module 'dfl_lightning.report' has no attribute '{name}'")
    home = {"write_report": "writing", "LivePage": "live"}.get(name, "charts")
    return getattr(importlib.import_module(f"dfl_lightning.report.{home}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
