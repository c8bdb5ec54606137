"""What differs between methods, as tables of the page, and the resolved config of each to download."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape

from dfl_lightning.checkpoints.history import config_text
from dfl_lightning.report.comparable import best_first
from dfl_lightning.report.differences import differences
from dfl_lightning.report.methods import Method
from dfl_lightning.report.page.tables import name_button


def settings_section(methods: Sequence[Method]) -> str:
    """A table for each comparison, settings in rows and methods in columns; the same table is shown once.

    Args:
        methods: of the page.
    """
    tables: dict[str, str] = {}
    places = {method.full_name: at for at, method in enumerate(methods)}
    for task in sorted({method.task for method in methods}):
        of_task = best_first([method for method in methods if method.task == task])
        found = differences(of_task)
        key = repr(sorted((m.name, *(values[at] for values in found.values())) for at, m in enumerate(of_task)))
        tables.setdefault(key, _table(of_task, found, places, task))
    note = (
        "Settings that differ, of the first run of each method; all others are the same. Seeds, monitors, folders and "
        "how a run is computed are no settings. Beside each name is the resolved config of that run."
    )
    if len({method.task for method in methods}) > len(tables):
        note += " Comparisons whose methods differ in the same settings have one table."
    return f"<p class='note'>{note}</p>" + "".join(tables.values())


def _table(methods: Sequence[Method], found: dict[str, list[str]], places: dict[str, int], task: int) -> str:
    def head(method: Method) -> str:
        name = name_button(method.name)
        if not method.runs[0].config:
            return f"<th scope='col'>{name}<small>from Python</small></th>"
        button = (
            f"<button type='button' data-config='{places[method.full_name]}' "
            f'aria-label="Save: config of {escape(method.full_name, quote=True)}">YAML</button>'
        )
        return f"<th scope='col'>{name} {button}</th>"

    heads = "".join(map(head, methods))
    rows = "".join(
        f"<tr><th scope='row'>{escape(name)}</th>{''.join(f'<td>{_breakable(value)}</td>' for value in values)}</tr>"
        for name, values in found.items()
    )
    if not rows:
        rows = f"<tr><th scope='row'>all settings are the same</th>{'<td></td>' * len(methods)}</tr>"
    return (
        f"<div class='scroll' tabindex='0' role='region' aria-label='Settings that differ, {task + 1}'>"
        f"<table class='settings'><thead><tr><th scope='col'>setting</th>{heads}</tr></thead><tbody>{rows}</tbody>"
        "</table></div>"
    )


def _breakable(value: str) -> str:
    """A setting as HTML whose long words may end a line where one of their parts does.

    Examples:
        >>> _breakable("AdaptiveThreshold: rule = k_of_n")
        'Adaptive<wbr>Threshold: rule = k_<wbr>of_<wbr>n'
    """
    return re.sub(r"_(?=\w)|(?<=[a-z])(?=[A-Z])", lambda end: f"{end[0]}<wbr>", escape(value))


def configs(methods: Sequence[Method]) -> list[list[str]]:
    """Name and resolved config of each method's first run; empty where no command has started it."""
    return [[m.full_name, config_text(m.runs[0].config) if m.runs[0].config else ""] for m in methods]
