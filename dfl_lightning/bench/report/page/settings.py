"""Section of the page with the settings in which methods differ, and the resolved config of each to save."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape

from dfl_lightning.bench.report.comparable import best_first
from dfl_lightning.bench.report.methods import Method
from dfl_lightning.bench.report.page.sections import heading
from dfl_lightning.bench.report.page.tables import name_button
from dfl_lightning.bench.report.settings.differences import differences
from dfl_lightning.checkpoints.history import UNKNOWN_SETTINGS, config_text

_ACROSS = 7
"""Largest number of methods that have room side by side."""


def settings_section(methods: Sequence[Method]) -> str:
    """Write a table of differences for each task; equal tables are shown once.

    Settings are rows and methods columns, or the other way round with more than `_ACROSS` methods.

    Args:
        methods: methods of one or several tasks.
    """
    tables: dict[str, tuple[list[str], str]] = {}
    numbers = {method.full_name: number for number, method in enumerate(methods)}
    for task in sorted({method.task for method in methods}):
        of_task = best_first([method for method in methods if method.task == task])
        settings = differences(of_task)
        key = repr(sorted((m.name, *(values[at] for values in settings.values())) for at, m in enumerate(of_task)))
        tables.setdefault(key, ([], _table(of_task, settings, numbers, task)))[0].append(heading(of_task, methods))
    note = (
        "Settings that differ, of the first run of each method; all others are the same. Seeds, monitors, folders and "
        "how a run is computed are no settings. Next to each name is the resolved config of that run."
    )
    if len({method.task for method in methods}) > len(tables):
        note += " Comparisons whose methods differ in the same settings have one table."
    has_headings = len(tables) > 1
    shown = (f"<h3>{escape('; '.join(where))}</h3>" * has_headings + table for where, table in tables.values())
    return f"<p class='note'>{note}</p>" + "".join(shown)


def _table(methods: Sequence[Method], settings: dict[str, list[str]], numbers: dict[str, int], task: int) -> str:
    """Write the table of a task.

    Args:
        methods: methods of the task.
        settings: value of each method by setting.
        numbers: number of each method among all methods of the page.
        task: number of the task, from 0.
    """

    def head(method: Method) -> str:
        name = name_button(method.name)
        if not method.runs[0].config:
            return f"{name}<small>no config.yaml</small>"
        button = (
            f"<button type='button' data-config='{numbers[method.full_name]}' "
            f'aria-label="Save: config of {escape(method.full_name, quote=True)}">YAML</button>'
        )
        return f"{name} {button}"

    across, down = list(map(head, methods)), [f"<code>{_breakable(name)}</code>" for name in settings]
    cells = [[_breakable(value) for value in values] for values in settings.values()]
    if not settings:
        are_known = all(m.runs[0].config and not m.runs[0].config.get(UNKNOWN_SETTINGS) for m in methods)
        down, cells = [f"all {'' if are_known else 'known '}settings are the same"], [[""] * len(methods)]
    corner = "setting"
    if len(methods) > _ACROSS:
        corner, across, down = "method", down, across
        cells = [list(row) for row in zip(*cells, strict=True)]
    heads = "".join(f"<th scope='col'>{words}</th>" for words in (corner, *across))
    rows = "".join(
        f"<tr><th scope='row'>{words}</th>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>"
        for words, row in zip(down, cells, strict=True)
    )
    return (
        f"<div class='scroll' tabindex='0' role='region' aria-label='Settings that differ, {task + 1}'>"
        f"<table class='settings'><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def _breakable(value: str) -> str:
    """Escape a setting for HTML, and allow line breaks between the parts of long words.

    Examples:
        >>> _breakable("AdaptiveThreshold: rule = k_of_n")
        'Adaptive<wbr>Threshold: rule = k_<wbr>of_<wbr>n'
    """
    return re.sub(r"_(?=\w)|(?<=[a-z])(?=[A-Z])", lambda end: f"{end[0]}<wbr>", escape(value))


def configs(methods: Sequence[Method]) -> list[list[str]]:
    """Return name and resolved config of each method's first run; the config is empty for a run started from Python."""
    return [[m.full_name, config_text(m.runs[0].config) if m.runs[0].config else ""] for m in methods]
