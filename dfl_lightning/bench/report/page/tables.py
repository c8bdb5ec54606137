"""The tables of the page as HTML."""

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
"""A cell whose number is NaN or infinite for a client that has data."""


def verdict_table(lines: Sequence[Line], colours: dict[str, int], caption: str, label: str) -> str:
    """Methods from best to worst, with their score and their cost, as HTML.

    Args:
        lines: a method each, the best first.
        colours: number of each method's colour.
        caption: above the table.
        label: of the table, for screen readers.
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
    """A sample of the method's line, as it is drawn in the charts.

    Args:
        method: its name.
        colours: number of each method's colour.
    """
    at = colours[method]
    dash = " ".join(map(str, dash_at(at))) if dash_at(at) != [1, 0] else "none"
    colour = f"var(--m{at % len(LIGHT['category'])})"
    line = f"<line x1='0' y1='5' x2='22' y2='5' stroke='{colour}' stroke-width='3' stroke-dasharray='{dash}'/>"
    return f"<svg class='key' width='22' height='10' aria-hidden='true'>{line}</svg>"


def name_button(method: str) -> str:
    """A method's name, which singles it out in all charts.

    Args:
        method: its name.
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
    """Return a further row with the score of the adversaries, which the mean above it leaves out."""
    means = []
    for run in method.runs:
        known, losses = last_of_clients(run), last_of_clients(run, "test_loss")
        who = adversaries(run, len(known))
        if not who.any() or who.all():
            return ""
        tested = ~np.isnan(losses if len(losses) else known)  # a client without test data has no loss
        here = known[who & tested]
        means.append(float(here.mean()) if len(here) else math.nan)
    cell = score_cell(spread_of_all(means), method.score)
    name = f"<th scope='row'>adversaries of {escape(method.name)}</th>"
    return f"<tr class='part'>{name}<td>{cell}</td>{'<td></td>' * 7}</tr>"


def score_cell(value: Spread, score: Score) -> str:
    """A mean score, with the standard deviation where there are several seeds.

    Args:
        value: over seeds.
        score: of the task.
    """
    if not value.count:
        return "–"
    if not math.isfinite(value.mean):
        return NOT_FINITE
    around = "" if value.sd is None else f" <i>± {score.number(value.sd, value.mean)}</i>"
    return f"<b>{score.number(value.mean)}</b>{around}"


def spread_cell(value: Spread, unit: float, digits: int) -> str:
    """A mean, with the standard deviation where there are several seeds.

    Args:
        value: over seeds.
        unit: factor, 100 for percent.
        digits: after the point.
    """
    if not value.count:
        return "–"
    if not math.isfinite(value.mean):
        return NOT_FINITE
    around = "" if value.sd is None else f" <i>± {value.sd * unit:.{digits}f}</i>"
    return f"<b>{value.mean * unit:,.{digits}f}</b>{around}"


def _digits(value: float) -> int:
    """Digits after the point: one, of a small number as many as show three that count.

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
    """What was typed, a row a run, with the seconds it took; folded where there are many."""
    places: dict[Path, tuple[Run, list[str]]] = {}  # a study's cell may have several
    for method in methods:
        for run in method.runs:
            places.setdefault(run.path, (run, []))[1].append(method.full_name)
    rows = ""
    for run, names in places.values():
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
    return f"<details><summary>{len(places)} runs</summary>{table}</details>" if len(places) > MOST_RUNS else table


def _typed(run: Run) -> str:
    if run.commands:
        return "<br>".join(f"<code>{_options_whole(command)}</code>" for command in run.commands)
    if any(run.config.get(key) for key in (UNKNOWN_SETTINGS, NOT_MAKEABLE)):
        return "<i>from Python, with objects that no config makes</i>"
    if run.config:
        return f"<code>dfl-fit --config {escape(str(run.path / 'config.yaml'))}</code> <i>(repeats it)</i>"
    return "<i>from Python</i>"


def _options_whole(command: str) -> str:
    """A command as HTML whose lines do not end within the name of an option."""
    return re.sub(r"(?<!\S)--[^\s=]+", lambda option: f"<span>{option[0]}</span>", escape(command))


def versions(methods: Sequence[Method]) -> str:
    """The versions of the software and the kind of processor, once where they are the same for all runs."""
    found: dict[str, list[str]] = {}
    for method in methods:
        for run in method.runs:
            known = run.summary.get("versions", {})
            text = " · ".join(f"{name} {version}" for name, version in known.items()) or "versions unknown"
            text += "".join(f" · {words}" for words in [in_words([run.summary.get("processor")])] if words)
            found.setdefault(text, []).append(f"{method.full_name}, seed {seed_of(run)}")
    if len(found) == 1:
        return f"<p class='note'>{escape(next(iter(found)))}</p>"
    return "".join(f"<p class='note'>{escape('; '.join(who))}: {escape(text)}</p>" for text, who in found.items())
