"""Tables of the page: the verdict, the commands and the versions."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from dfl_lightning.bench.report.attack import adversaries
from dfl_lightning.bench.report.charts.colours import dash_at
from dfl_lightning.bench.report.comparable import for_charts
from dfl_lightning.bench.report.look.theme import LIGHT
from dfl_lightning.bench.report.methods import Method, seed_of
from dfl_lightning.bench.report.over_seeds import last_of_clients
from dfl_lightning.bench.report.page.contents.seeds import SeedDot
from dfl_lightning.bench.report.page.contents.spread import worst_of
from dfl_lightning.bench.report.page.sentences.limits import MOST_RUNS
from dfl_lightning.bench.report.page.sentences.verdict import Line, interval
from dfl_lightning.bench.report.page.templates.filling import fill
from dfl_lightning.bench.stats.statistics import Interval, Spread, spread_of_all
from dfl_lightning.bench.stats.words import shared_digits, shared_reference, spread_in_words
from dfl_lightning.checkpoints.history import NOT_MAKEABLE, UNKNOWN_SETTINGS
from dfl_lightning.runs.processor import in_words
from dfl_lightning.runs.reading import Run
from dfl_lightning.utils.score import Score

if TYPE_CHECKING:
    from markupsafe import Markup


@dataclass(frozen=True)
class LineStyle:
    """The look of a method's line in the charts.

    Attributes:
        colour: colour in CSS.
        dash: lengths of dashes and gaps in SVG, or `none`.
    """

    colour: str
    dash: str


@dataclass(frozen=True)
class Content:
    """Content of a cell: a number with words next to it, or only words.

    Attributes:
        number: number in bold; empty if there is none.
        around: words next to the number; may be empty.
        words: words of a cell without a number.
    """

    number: str = ""
    around: str = ""
    words: str = ""


@dataclass(frozen=True)
class _Digits:
    """Digits of numbers in the verdict's table, the same within a column.

    Attributes:
        score: number with the digits of scores and of their differences.
        received: digits of megabytes after the point.
    """

    score: float
    received: int


@dataclass(frozen=True)
class ColumnHead:
    """The head of a column of the verdict's table.

    Attributes:
        name: name of the column's cells.
        words: words of the head, `{score}` for the name of the score.
        unit: words below, `{percent}` and `{points}` for units of the score, `{worst}` for the worst clients.
        opens: id of a table below that has more; empty without one.
    """

    name: str
    words: str
    unit: str
    opens: str = ""


_HEADS = (
    ColumnHead("score", "test {score}", "{percent}last round"),
    ColumnHead("worst", "worst tenth", "{worst}{per_cent}"),
    ColumnHead("best", "to the best", "{points}"),
    ColumnHead("local", "over training alone", "{points}"),
    ColumnHead("received", "received", "MB a client"),
    ColumnHead("models", "models", "a round"),
    ColumnHead("seconds", "rounds took", "seconds"),
    ColumnHead("seeds", "seeds", ""),
)
"""Columns of the verdict's table; those without any value are left out."""

_NONE = Content(words="–")
"""Content of a cell without a value."""

_NOT_FINITE = Content(words="not finite")
"""Content of a cell if a client with data has a value that is NaN or infinite."""


def verdict_table(
    lines: Sequence[Line],
    colours: dict[str, int],
    caption: str,
    label: str,
    dots: Mapping[str, Sequence[SeedDot]],
    opens: Mapping[str, str] = MappingProxyType({}),
) -> Markup:
    """Write the table of methods from best to worst, with their scores and costs.

    Args:
        lines: a row for each method, the best first.
        colours: number of each method's colour.
        caption: caption above the table.
        label: name of the table for screen readers.
        dots: the dot of each seed, by the full name of the method.
        opens: ids of tables below that have more than a column, by the name of the column.
    """
    aside = {method.full_name for method in for_charts([line.method for line in lines]) if method.aside}
    digits = _Digits(
        score=shared_reference([value.mean for line in lines for value in (line.score, line.worst)]),
        received=_digits_of_megabytes([1e-6 * line.received.mean for line in lines]),
    )
    rows = [
        _verdict_row(line, colours, len(lines) == 1, line.method.full_name in aside, digits)
        | {"dots": dots[line.method.full_name]}
        for line in lines
    ]
    worst = worst_of([line.method for line in lines]) or "of the clients"
    shown = [head.name for head in _HEADS if any(row["cells"][head.name] != _NONE for row in rows)]
    for row in rows:
        row["cells"] = {name: row["cells"][name] for name in shown}
    return fill(
        "verdict_table.html",
        caption=caption,
        label=label,
        heads=[
            replace(_head_of(head, lines[0].method.score, worst), opens=opens.get(head.name, ""))
            for head in _HEADS
            if head.name in shown
        ],
        scale=_scale(dots) if any(len(places) > 1 for places in dots.values()) else "",
        rows=rows,
    )


def _scale(dots: Mapping[str, Sequence[SeedDot]]) -> str:
    """Say from which to which score the dots of all methods go."""
    order = sorted(dot for places in dots.values() for dot in places)
    return f"{order[0].value} to {order[-1].value}"


def _head_of(head: ColumnHead, score: Score, worst: str) -> ColumnHead:
    """Return a head with the name and the units of a score, and the number of clients of the worst tenth."""
    units = {"worst": worst, "percent": "%, " if score.percent else "", "per_cent": ", %" if score.percent else ""}
    units["points"] = "points" if score.percent else score.label
    return ColumnHead(head.name, head.words.format(score=score.label), head.unit.format(**units))


def key(method: str, colours: dict[str, int]) -> LineStyle:
    """Return the look of a method's line in the charts, as the table shows it.

    Args:
        method: name of the method.
        colours: number of each method's colour.
    """
    number = colours[method]
    dash = " ".join(map(str, dash_at(number))) if dash_at(number) != [1, 0] else "none"
    return LineStyle(f"var(--m{number % len(LIGHT['category'])})", dash)


def _verdict_row(
    line: Line, colours: dict[str, int], alone_in_task: bool, is_aside: bool, digits: _Digits
) -> dict[str, Any]:
    method, score = line.method, line.method.score
    is_best = line.is_best and not alone_in_task
    cells = {
        "score": _score_content(line.score, score, digits.score),
        "worst": _score_content(line.worst, score, digits.score),
        "best": Content(words="best") if is_best else _difference(line.to_best, score, digits.score),
        "local": _NONE if method.is_local else _difference(line.over_local, score, digits.score),
        "received": _spread_content(line.received, 1e-6, digits.received),
        "models": _spread_content(line.models, 1, 1),
        "seconds": _spread_content(line.seconds, 1, 1),
        "seeds": Content(words=str(len(method.runs))),
    }
    return {
        "method": method.name,
        "key": key(method.name, colours),
        "notes": method.notes,
        "is_aside": is_aside,
        "cells": cells,
        "adversaries": _of_adversaries(method, digits.score),
    }


def _of_adversaries(method: Method, reference: float) -> Content | None:
    """Write the mean score of a method's adversaries, which its row leaves out; None if it has none."""
    means = []
    for run in method.runs:
        scores, losses = last_of_clients(run), last_of_clients(run, "test_loss")
        are_adversaries = adversaries(run, len(scores))
        if not are_adversaries.any() or are_adversaries.all():
            return None
        are_tested = ~np.isnan(scores)
        if len(losses):  # one whose loss is infinite has test data, and no score
            are_tested |= np.isinf(losses)
        of_adversaries = scores[are_adversaries & are_tested]
        means.append(float(of_adversaries.mean()) if len(of_adversaries) else math.nan)
    return _score_content(spread_of_all(means), method.score, reference)


def _score_content(value: Spread, score: Score, reference: float) -> Content:
    """Write a mean score, and its standard deviation if there are several seeds."""
    if (missing := _missing(value)) is not None:
        return missing
    around = "" if value.sd is None else f"± {spread_in_words(value.sd, score.number(value.sd, reference))}"
    return Content(score.number(value.mean, reference), around)


def _spread_content(value: Spread, unit: float, digits: int) -> Content:
    """Write a mean, and its standard deviation if there are several seeds.

    Args:
        value: mean over seeds.
        unit: factor to the unit of the table, for example 100 for per cent.
        digits: number of digits after the point.
    """
    if (missing := _missing(value)) is not None:
        return missing
    around = "" if value.sd is None else f"± {spread_in_words(value.sd, f'{value.sd * unit:.{digits}f}')}"
    number = f"{value.mean * unit:,.{digits}f}"
    return Content(spread_in_words(value.mean, number) if value.mean else number, around)


def _missing(value: Spread) -> Content | None:
    """Return the content of a cell whose value is missing or not finite, and None for other values."""
    if not value.count:
        return _NONE
    return None if math.isfinite(value.mean) else _NOT_FINITE


def _digits_of_megabytes(values: Sequence[float]) -> int:
    """Return the digits after the point of a column: one, or more if a number is below 1, see `shared_digits`.

    Examples:
        >>> _digits_of_megabytes([21.3, 3.0, 0.0]), _digits_of_megabytes([0.943, 3.0])
        (1, 3)
    """
    return max(1, shared_digits(values)) if any(0 < value < 1 for value in values) else 1


def _difference(value: Interval | None, score: Score, reference: float) -> Content:
    if value is None:
        return _NONE
    around = interval(value, score, bare=True, reference=reference) if value.count > 1 else "one seed"
    return Content(score.signed(value.mean, reference), around)


def commands_table(methods: Sequence[Method]) -> Markup:
    """Write the table of commands, a row for each run with its seconds; folded if there are many runs."""
    by_path: dict[Path, tuple[Run, list[str]]] = {}  # a run may be in several cells of a study
    for method in methods:
        for run in method.runs:
            by_path.setdefault(run.path, (run, []))[1].append(method.full_name)
    rows = [_commands_row(run, names) for run, names in by_path.values()]
    return fill("commands.html", rows=rows, is_folded=len(rows) > MOST_RUNS)


def _commands_row(run: Run, names: Sequence[str]) -> dict[str, Any]:
    """Return the row of a run.

    Args:
        run: one of the page's runs.
        names: full names of the run's methods, one for each cell of a study.
    """
    spent = run.summary.get("seconds", {})
    phases = {name: seconds for name, seconds in spent.items() if name != "rounds"}
    longest = sorted(phases.items(), key=lambda phase: -phase[1])[:3]
    repeats = remark = ""
    if not run.commands:
        if any(run.config.get(key) for key in (UNKNOWN_SETTINGS, NOT_MAKEABLE)):
            remark = "from Python, with objects that no config makes"
        elif run.config:
            repeats = str(run.path / "config.yaml")
        else:
            remark = "from Python"
    return {
        "names": names,
        "seed": seed_of(run),
        "commands": [_with_options_apart(command) for command in run.commands],
        "repeats": repeats,
        "remark": remark,
        "rounds": len(run.metrics["round"]),
        "seconds": f"{spent['rounds']:,.1f}" if spent.get("rounds") is not None else "–",
        "longest": ", ".join(f"{name} {seconds:,.1f}" for name, seconds in longest) or "–",
    }


def _with_options_apart(command: str) -> list[str]:
    """Split a command; every second part is the name of an option, which has no line breaks within it.

    Examples:
        >>> _with_options_apart("dfl-fit --config mine --model.x=1")
        ['dfl-fit ', '--config', ' mine ', '--model.x', '=1']
    """
    return re.split(r"(?<!\S)(--[^\s=]+)", command)


def versions(methods: Sequence[Method]) -> Markup:
    """Write versions of software and kind of processor of all runs; equal ones are written once."""
    runs_by_text: dict[str, list[str]] = {}
    for method in methods:
        for run in method.runs:
            recorded = run.summary.get("versions", {})
            text = " · ".join(f"{name} {version}" for name, version in recorded.items()) or "versions unknown"
            text += "".join(f" · {words}" for words in [in_words([run.summary.get("processor")])] if words)
            runs_by_text.setdefault(text, []).append(f"{method.full_name}, seed {seed_of(run)}")
    return fill("versions.html", runs_by_text=runs_by_text)
