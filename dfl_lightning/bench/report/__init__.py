"""Reports of runs for people: charts, and a page in HTML.

>>> from dfl_lightning import read_run, report
>>> report.__all__[1:3]
['accuracy_by_bytes', 'accuracy_by_time']

The charts need Altair: pip install 'dfl-lightning[report]'.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dfl_lightning.bench.report.charts import *  # noqa: F403
    from dfl_lightning.bench.report.live import LivePage as LivePage
    from dfl_lightning.bench.report.writing import write_report as write_report

_HOMES = {"LivePage": "live", "write_report": "writing"}
"""The module of each public name that is not a chart; charts are listed only in their own package."""


def __getattr__(name: str) -> Any:
    # Names are imported on first use, because reading a run's files needs none of the libraries that draw.
    if name in _HOMES:
        return getattr(importlib.import_module(f"dfl_lightning.bench.report.{_HOMES[name]}"), name)
    if name == "__all__" or not name.startswith("_"):
        charts = importlib.import_module("dfl_lightning.bench.report.charts")
        if name == "__all__":
            return sorted([*_HOMES, *charts.__all__])
        if name in charts.__all__:
            given = importlib.import_module("dfl_lightning.bench.report.charts.given")
            return given.taking_any_runs(getattr(charts, name))
    raise AttributeError(f"module 'dfl_lightning.bench.report' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *__getattr__("__all__")})
