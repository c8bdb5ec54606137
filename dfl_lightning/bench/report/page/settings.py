"""Section of the page with the settings in which methods differ, and the resolved config of each to save."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dfl_lightning.bench.report.comparable import best_first
from dfl_lightning.bench.report.methods import Method
from dfl_lightning.bench.report.page.sections import heading
from dfl_lightning.bench.report.page.templates.filling import fill
from dfl_lightning.bench.report.settings.differences import all_settings, differences
from dfl_lightning.checkpoints.history import UNKNOWN_SETTINGS, config_text

if TYPE_CHECKING:
    from markupsafe import Markup

_ACROSS = 7
"""Largest number of methods that have room side by side."""


@dataclass(frozen=True)
class Head:
    """The head of a column or row: a method, a setting, or words.

    Attributes:
        method: name of the method; empty if it is a setting or words.
        full_name: name of the method that is unique on the page.
        config: number of the method among all methods of the page; None if its run has no config.
        setting: parts of the setting's name, see `breakable`.
        words: words of another head.
    """

    method: str = ""
    full_name: str = ""
    config: int | None = None
    setting: Sequence[str] = ()
    words: str = ""


def settings_section(methods: Sequence[Method]) -> Markup:
    """Write a table of differences for each task; equal tables are shown once.

    Settings are rows and methods columns, or the other way round with more than `_ACROSS` methods.

    Args:
        methods: methods of one or several tasks.
    """
    if len(methods) == 1:
        return _of_one(methods[0])
    tables: dict[str, dict[str, Any]] = {}
    numbers = {method.full_name: number for number, method in enumerate(methods)}
    for task in sorted({method.task for method in methods}):
        of_task = best_first([method for method in methods if method.task == task])
        settings = differences(of_task)
        key = repr(sorted((m.name, *(values[at] for values in settings.values())) for at, m in enumerate(of_task)))
        if key not in tables:
            tables[key] = {"number": task + 1, "where": [], **_table(of_task, settings, numbers)}
        tables[key]["where"].append(heading(of_task, methods))
    note = (
        "Settings that differ, of the first run of each method; all others are the same. Seeds, monitors, folders and "
        "how a run is computed are not settings. Next to each name is the resolved config of that run."
    )
    if len({method.task for method in methods}) > len(tables):
        note += " Comparisons whose methods differ in the same settings have one table."
    return fill("settings.html", note=note, tables=list(tables.values()))


def _of_one(method: Method) -> Markup:
    """Write the table of all settings of a single method."""
    settings = all_settings(method.runs[0])
    head = Head(method.name, method.full_name, config=0 if method.runs[0].config else None)
    rows = [(Head(setting=breakable(name)), [breakable(value)]) for name, value in settings.items()]
    if not rows:
        rows = [(Head(words="the run has no config.yaml"), [[]])]
    table = {"number": 1, "where": [], "corner": "setting", "across": [head], "rows": rows}
    note = "All settings of the run, without seeds, monitors, folders and how it is computed."
    return fill("settings.html", note=note, tables=[table])


def _table(methods: Sequence[Method], settings: dict[str, list[str]], numbers: dict[str, int]) -> dict[str, Any]:
    """Return heads and cells of the table of a task.

    Args:
        methods: methods of the task.
        settings: value of each method by setting.
        numbers: number of each method among all methods of the page.
    """
    across = [Head(m.name, m.full_name, config=numbers[m.full_name] if m.runs[0].config else None) for m in methods]
    down = [Head(setting=breakable(name)) for name in settings]
    cells = [[breakable(value) for value in values] for values in settings.values()]
    if not settings:
        are_known = all(m.runs[0].config and not m.runs[0].config.get(UNKNOWN_SETTINGS) for m in methods)
        down, cells = [Head(words=f"all {'' if are_known else 'known '}settings are the same")], [[[]] * len(methods)]
    corner = "setting"
    if len(methods) > _ACROSS:
        corner, across, down = "method", down, across
        cells = [list(row) for row in zip(*cells, strict=True)]
    return {"corner": corner, "across": across, "rows": list(zip(down, cells, strict=True))}


def breakable(value: str) -> list[str]:
    """Split a setting into parts between which a line may break, within long words too.

    Examples:
        >>> breakable("AdaptiveThreshold: rule = k_of_n")
        ['Adaptive', 'Threshold: rule = k_', 'of_', 'n']
        >>> breakable("model.optimizer.lr"), breakable("0.05")
        (['model.', 'optimizer.', 'lr'], ['0.05'])
    """
    return re.split(r"(?<=_)(?=\w)|(?<=[a-z])(?=[A-Z])|(?<=[^\W\d]\.)(?=[^\W\d])", value)


def configs(methods: Sequence[Method]) -> list[list[str]]:
    """Return name and resolved config of each method's first run; the config is empty for a run started from Python."""
    return [[m.full_name, config_text(m.runs[0].config) if m.runs[0].config else ""] for m in methods]
