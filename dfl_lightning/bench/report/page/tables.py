"""Tables of the page in HTML."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from html import escape
from pathlib import Path

import numpy as np

from dfl_lightning.bench.report.attack import adversaries
from dfl_lightning.bench.report.charts.colours import dash_at
from dfl_lightning.bench.report.charts.theme import LIGHT
from dfl_lightning.bench.report.comparable import for_charts
from dfl_lightning.bench.report.methods import Method, seed_of
from dfl_lightning.bench.report.over_seeds import last_of_clients
from dfl_lightning.bench.report.page.sentences.limits import MOST_RUNS
from dfl_lightning.bench.report.page.sentences.verdict import Line, interval
from dfl_lightning.bench.stats.statistics import Interval, Spread, spread_of_all
from dfl_lightning.checkpoints.history import NOT_MAKEABLE, UNKNOWN_SETTINGS
from dfl_lightning.runs.processor import in_words
from dfl_lightning.runs.reading import Run
from dfl_lightning.utils.score import Score

NOT_FINITE = "not finite"
"""Content of a cell if a client with data has a value that is NaN or infinite."""


def verdict_table(lines: Sequence[Line], colours: dict[str, int], caption: str, label: str) -> str:
    """Write the table of methods from best to worst, with their scores and costs.

    Args:
        lines: a row for each method, the best first.
        colours: number of each method's colour.
        caption: caption above the table.
        label: name of the table for screen readers.
    """
    score = lines[0].method.score
    unit, points = ("%, ", "points") if score.percent else ("", escape(score.label))
    head = "".join(
        f"<th scope='col'>{words}</th>"
        for words in (
            "method",
            f"test {escape(score.label)}<small>{unit}last round</small>",
            f"worst tenth<small>of the clients{', %' if score.percent else ''}</small>",
            f"to the best<small>{points}</small>",
            f"over training alone<small>{points}</small>",
            "received<small>MB a client</small>",
            "models<small>a round</small>",
            "rounds took<small>seconds</small>",
            "seeds",
        )
    )
    aside = {method.full_name for method in for_charts([line.method for line in lines]) if method.aside}
    rows = "".join(_verdict_row(line, colours, len(lines) == 1, line.method.full_name in aside) for line in lines)
    return (
        f"<div class='scroll' tabindex='0' role='region' aria-label=\"{escape(label, quote=True)}\">"
        "<table class='verdict'>"
        f"<caption><span>{escape(caption)}</span></caption><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def key(method: str, colours: dict[str, int]) -> str:
    """Draw a sample of a method's line, as in the charts.

    Args:
        method: name of the method.
        colours: number of each method's colour.
    """
    number = colours[method]
    dash = " ".join(map(str, dash_at(number))) if dash_at(number) != [1, 0] else "none"
    colour = f"var(--m{number % len(LIGHT['category'])})"
    line = f"<line x1='0' y1='5' x2='22' y2='5' stroke='{colour}' stroke-width='3' stroke-dasharray='{dash}'/>"
    return f"<svg class='key' width='22' height='10' aria-hidden='true'>{line}</svg>"


def name_button(method: str) -> str:
    """Write a method's name as a button that highlights the method in all charts.

    Args:
        method: name of the method.
    """
    return (
        f"<button type='button' class='name' aria-pressed='false' data-single=\"{escape(method, quote=True)}\">"
        f"{escape(method)}</button>"
    )


def _verdict_row(line: Line, colours: dict[str, int], alone_in_task: bool, aside: bool) -> str:
    method, score = line.method, line.method.score
    best = "best" if line.is_best and not alone_in_task else _difference(line.to_best, score)
    alone = "–" if method.is_local else _difference(line.over_local, score)
    notes = f"<small class='notes'>{escape('; '.join(method.notes))}</small>" if method.notes else ""
    split = _of_adversaries(method)
    cells = (
        ("score", score_cell(line.score, score)),
        ("worst", score_cell(line.worst, score)),
        ("best", best),
        ("local", alone),
        ("received", spread_cell(line.received, 1e-6, _digits(1e-6 * line.received.mean))),
        ("models", spread_cell(line.models, 1, 1)),
        ("seconds", spread_cell(line.seconds, 1, 1)),
        ("seeds", str(len(method.runs))),
    )
    body = "".join(f"<td data-is='{name}'>{text}</td>" for name, text in cells)
    name = f"<th scope='row'>{key(method.name, colours)}{name_button(method.name)}{notes}</th>"
    faint = " class='aside'" * aside
    return f'<tr{faint} data-method="{escape(method.name, quote=True)}">{name}{body}</tr>{split}'


def _of_adversaries(method: Method) -> str:
    """Write a further row with the mean score of the adversaries, which the row above it leaves out; may be empty."""
    means = []
    for run in method.runs:
        scores, losses = last_of_clients(run), last_of_clients(run, "test_loss")
        are_adversaries = adversaries(run, len(scores))
        if not are_adversaries.any() or are_adversaries.all():
            return ""
        are_tested = ~np.isnan(losses if len(losses) else scores)  # a client without test data has no loss
        of_adversaries = scores[are_adversaries & are_tested]
        means.append(float(of_adversaries.mean()) if len(of_adversaries) else math.nan)
    cell = score_cell(spread_of_all(means), method.score)
    name = f"<th scope='row'>adversaries of {escape(method.name)}</th>"
    return f"<tr class='part'>{name}<td>{cell}</td>{'<td></td>' * 7}</tr>"


def score_cell(value: Spread, score: Score) -> str:
    """Write a cell with a mean score, and its standard deviation if there are several seeds.

    Args:
        value: mean over seeds.
        score: score of the task.
    """
    if not value.count:
        return "–"
    if not math.isfinite(value.mean):
        return NOT_FINITE
    around = "" if value.sd is None else f" <i>± {score.number(value.sd, value.mean)}</i>"
    return f"<b>{score.number(value.mean)}</b>{around}"


def spread_cell(value: Spread, unit: float, digits: int) -> str:
    """Write a cell with a mean, and its standard deviation if there are several seeds.

    Args:
        value: mean over seeds.
        unit: factor to the unit of the table, for example 100 for per cent.
        digits: number of digits after the point.
    """
    if not value.count:
        return "–"
    if not math.isfinite(value.mean):
        return NOT_FINITE
    around = "" if value.sd is None else f" <i>± {value.sd * unit:.{digits}f}</i>"
    return f"<b>{value.mean * unit:,.{digits}f}</b>{around}"


def _digits(value: float) -> int:
    """Return the number of digits after the point: one, or for a number below 1 enough for three significant digits.

    Examples:
        >>> _digits(21.3), _digits(0.0112), _digits(0.0)
        (1, 4, 1)
    """
    return 2 - math.floor(math.log10(value)) if 0 < value < 1 else 1


def _difference(value: Interval | None, score: Score) -> str:
    if value is None:
        return "–"
    mean = score.signed(value.mean)
    around = interval(value, score, bare=True) if value.count > 1 else "one seed"
    return f"<b>{mean}</b> <i>{around}</i>"


def commands_table(methods: Sequence[Method]) -> str:
    """Write the table of commands, a row for each run with its seconds; folded if there are many runs."""
    by_path: dict[Path, tuple[Run, list[str]]] = {}  # a run may be in several cells of a study
    for method in methods:
        for run in method.runs:
            by_path.setdefault(run.path, (run, []))[1].append(method.full_name)
    rows = ""
    for run, names in by_path.values():
        spent = run.summary.get("seconds", {})
        phases = {name: seconds for name, seconds in spent.items() if name != "rounds"}
        longest = sorted(phases.items(), key=lambda phase: -phase[1])[:3]
        most = ", ".join(f"{name} {seconds:,.1f}" for name, seconds in longest)
        took = f"{spent['rounds']:,.1f}" if spent.get("rounds") is not None else "–"
        rows += (
            f"<tr><th scope='row'>{'<br>'.join(map(escape, names))}</th><td>{escape(str(seed_of(run)))}</td>"
            f"<td class='typed'>{_typed(run)}</td><td>{len(run.metrics['round'])}</td>"
            f"<td>{took}</td><td class='typed'>{escape(most) or '–'}</td></tr>"
        )
    head = "".join(
        f"<th scope='col'>{words}</th>"
        for words in ("method", "seed", "command as typed", "rounds", "seconds", "of these, most in")
    )
    table = (
        "<div class='scroll' tabindex='0' role='region' aria-label='Commands'><table class='commands'>"
        f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
    )
    return f"<details><summary>{len(by_path)} runs</summary>{table}</details>" if len(by_path) > MOST_RUNS else table


def _typed(run: Run) -> str:
    if run.commands:
        return "<br>".join(f"<code>{_options_whole(command)}</code>" for command in run.commands)
    if any(run.config.get(key) for key in (UNKNOWN_SETTINGS, NOT_MAKEABLE)):
        return "<i>from Python, with objects that no config makes</i>"
    if run.config:
        return f"<code>dfl-fit --config {escape(str(run.path / 'config.yaml'))}</code> <i>(repeats it)</i>"
    return "<i>from Python</i>"


def _options_whole(command: str) -> str:
    """Escape a command for HTML, without line breaks within the name of an option."""
    return re.sub(r"(?<!\S)--[^\s=]+", lambda option: f"<span>{option[0]}</span>", escape(command))


def versions(methods: Sequence[Method]) -> str:
    """Write versions of software and kind of processor of all runs; equal ones are written once."""
    runs_by_text: dict[str, list[str]] = {}
    for method in methods:
        for run in method.runs:
            recorded = run.summary.get("versions", {})
            text = " · ".join(f"{name} {version}" for name, version in recorded.items()) or "versions unknown"
            text += "".join(f" · {words}" for words in [in_words([run.summary.get("processor")])] if words)
            runs_by_text.setdefault(text, []).append(f"{method.full_name}, seed {seed_of(run)}")
    if len(runs_by_text) == 1:
        return f"<p class='note'>{escape(next(iter(runs_by_text)))}</p>"
    return "".join(
        f"<p class='note'>{escape('; '.join(runs))}: {escape(text)}</p>" for text, runs in runs_by_text.items()
    )
