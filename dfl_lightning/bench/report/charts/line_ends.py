"""Names at the ends of lines: shortened, spread so that they do not overlap, and with a rim."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from dfl_lightning.bench.report.charts.base import HEIGHT, Row, altair, data
from dfl_lightning.bench.report.charts.colours import LOCAL, method_colour
from dfl_lightning.bench.report.methods import Method


def said_after(method: Method, words: str) -> str:
    """Return the text after a method's name at the end of its line: the reason why it is not compared, or the words.

    Args:
        method: method as `for_charts` returns it.
        words: words such as a number; may be empty.
    """
    if method.aside:
        return f": {method.aside}"
    return f"  {words}" if words else ""


def ended(method: Method, field: str, value: float, more: str = "") -> Row:
    """Return the value at which a line ends, and the text after its name there.

    A value that is not finite is put beyond the worst end of the axis.

    Args:
        method: method as `for_charts` returns it.
        field: field of the rows for the value in the unit of the chart.
        value: score in its own unit.
        more: text after the number.
    """
    score = method.score
    if not math.isfinite(value):
        return {field: score.merit(-math.inf), "after": said_after(method, f"not finite{more}")}
    return {field: value * score.factor, "after": said_after(method, f"{score.number(value)}{more}")}


def spread_out(positions: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Move positions of labels so that they are at least `gap` apart, keep their order, and move little.

    Args:
        positions: wanted positions.
        gap: least distance between two labels.
        low: lower end of the axis.
        high: upper end of the axis.

    Examples:
        >>> spread_out([10.0, 10.0, 50.0], 4.0, 0.0, 100.0)
        [8.0, 12.0, 50.0]
    """
    order = sorted(range(len(positions)), key=lambda i: positions[i])
    blocks: list[tuple[float, int]] = []  # centre and number of labels of each group of touching labels
    for i in order:
        centre, count = min(max(positions[i], low), high), 1
        while blocks and blocks[-1][0] + gap * (blocks[-1][1] + count) / 2 > centre:
            before, others = blocks.pop()
            centre = (before * others + centre * count) / (others + count)
            count += others
            half = gap * (count - 1) / 2
            centre = min(max(centre, low + half), max(high - half, low + half))
        blocks.append((centre, count))
    ascending = [centre + gap * (k - (count - 1) / 2) for centre, count in blocks for k in range(count)]
    moved = [0.0] * len(positions)
    for i, position in zip(order, ascending, strict=True):
        moved[i] = position
    return moved


def end_labels(
    rows: Sequence[Row],
    names: Sequence[str],
    y: str,
    domain: Sequence[float],
    x: str,
    height: int = HEIGHT,
    letters: int = 24,
    ends: Sequence[float] | None = None,
    lines: Sequence[Row] = (),
    lift: float = 0.0,
    most: float | None = None,
) -> list[Any]:
    """Make the layers with names at the ends of lines, in the lines' colours, spread so that they do not overlap.

    Letters have a rim, and a dot and a thin line lead from each end to its name. A name is moved to the side of the
    chart if it has no room after the end of its line, or if another line would run through it there.

    Args:
        rows: a row for each line with its `method`, its end, and optionally the text `after` its name.
        names: names of all methods of the page, for their colours.
        y: field with the vertical coordinate of the end.
        domain: both ends of the vertical axis.
        x: field with the horizontal coordinate of the end.
        height: height of the chart in pixels.
        letters: largest number of letters of a name.
        ends: both ends of the horizontal axis, if it is logarithmic; default: a linear axis from 0 to `most`.
        lines: points of all lines, from left to right; default: lines are ignored.
        lift: distance of names above the ends, in pixels.
        most: upper end of a linear axis; default: the last end of a line.
    """
    alt = altair()
    pixel = (domain[1] - domain[0]) / (height - 50)
    gap = 16 * pixel
    rows = with_labels(rows, y, (height - 50) // 16)
    if ends or most is None:
        most = ends[1] if ends else max((row[x] for row in rows), default=0)
    lengths = [short_names([row["method"] for row in rows], most_letters) for most_letters in (letters, _BRIEF)]
    labels = []

    def share_of_width(value: float) -> float:
        return math.log(value / ends[0]) / math.log(most / ends[0]) if ends else value / (most or 1)

    curves: dict[str, list[tuple[float, float]]] = {}
    for row in lines:
        if row[y] is not None and math.isfinite(row[y]) and (row[x] > 0 or not ends):
            curves.setdefault(row["method"], []).append((share_of_width(row[x]), row[y]))
    for row in rows:
        after = row.get("after", "")
        label, brief = (
            _label(shown[row["method"]], after, most_letters)
            for shown, most_letters in zip(lengths, (letters, _BRIEF), strict=True)
        )
        begin = share_of_width(row[x])
        stop = begin + (_ROOM + len(label) * _LETTER) / _NARROW
        others = [curve for method, curve in curves.items() if method != row["method"]]
        free = (1 - begin) * _NARROW > len(label) * _LETTER and not any(
            _runs_over(curve, begin, stop, row[y] - gap / 2, row[y] + gap / 2) for curve in others
        )
        label_x = row[x] if free else most
        end = {"end_x": row[x], "end_y": row[y], "inside": bool(domain[0] <= row[y] <= domain[1])}
        labels.append({"method": row["method"], "label": label, "brief": brief, "label_x": label_x, **end})
    for at_side in (True, False):  # names within the chart and at its side cannot overlap, so each group is spread
        group = [one for one in labels if (one["label_x"] == most) == at_side]
        for one, label_y in zip(
            group, spread_out([one["end_y"] + lift * pixel for one in group], gap, *domain), strict=True
        ):
            one["label_y"] = label_y
    chart, vertical = alt.Chart(data(labels)), list(domain)
    within = chart.transform_filter("datum.inside")
    base = chart.encode(x=alt.X("label_x:Q"), y=alt.Y("label_y:Q").scale(domain=vertical), text=alt.Text("label:N"))
    colour = method_colour(names)
    end_x, end_y = alt.X("end_x:Q"), alt.Y("end_y:Q").scale(domain=vertical)
    marks = [
        within.mark_rule(strokeWidth=1, opacity=0.45, x2Offset=_ROOM - 2).encode(
            x=end_x, y=end_y, x2=alt.X2("label_x:Q"), y2=alt.Y2("label_y:Q"), color=colour
        ),
        within.mark_point(filled=True, opacity=1, size=36).encode(x=end_x, y=end_y, color=colour),
    ]
    return [
        *(marks if any(one["inside"] for one in labels) else []),
        *with_rim(
            base,
            {"color": colour, "tooltip": [alt.Tooltip("method:N")]},
            align="left",
            dx=_ROOM,
            fontSize=12,
            fontWeight=600,
            clip=False,
        ),
    ]


def _runs_over(curve: Sequence[tuple[float, float]], left: float, right: float, low: float, high: float) -> bool:
    """Return True if a line of straight pieces runs through a rectangle.

    Args:
        curve: points (x, y) of the line, from left to right.
        left: least x of the rectangle.
        right: largest x.
        low: least y.
        high: largest y.

    Examples:
        >>> _runs_over([(0, 0), (4, 4)], 1, 2, 1.5, 3), _runs_over([(0, 0), (4, 4)], 1, 2, 3, 4)
        (True, False)
    """
    points = [(left + k * (right - left) / 16) for k in range(17)]
    xs, ys = zip(*curve, strict=True)
    within = [y for y, x in zip(np.interp(points, xs, ys), points, strict=True) if xs[0] <= x <= xs[-1]]
    return bool(within and min(within) <= high and max(within) >= low)


def _label(name: str, after: str, letters: int) -> str:
    """Join a name and the text after it; the name is shortened to make room for a reason.

    If the name would become too short, the reason is left out.

    Args:
        name: name of a method, already shortened.
        after: a number, or `: ` and the reason why a method is not compared.
        letters: largest number of letters of a name before a number.
    """
    if not after.startswith(": "):
        return f"{name}{after}"
    room = letters + _NUMBER - len(after)
    return f"{_short(name, room)}{after}" if room >= min(_LEAST, len(name)) else name


def with_labels(rows: Sequence[Row], y: str, most: int) -> list[Row]:
    """Choose the lines that get a name, if there are too many: the highest ones, the lowest one, and training alone.

    Args:
        rows: a row for each line.
        y: field with the vertical coordinate of the line's end.
        most: largest number of names, 3 or more.

    Examples:
        >>> rows = [{"method": name, "y": value} for value, name in enumerate(["Local", "A", "B", "C", "D"])]
        >>> [row["method"] for row in with_labels(rows, "y", 3)]
        ['Local', 'C', 'D']
    """
    if len(rows) <= most:
        return list(rows)
    order = sorted(rows, key=lambda row: -row[y])
    needed = [order[-1], *(row for row in order[:-1] if row["method"] == LOCAL)]
    chosen = needed + [row for row in order if row not in needed][: most - len(needed)]
    return [row for row in rows if row in chosen]


_NUMBER, _LEAST = 6, 8
"""Letters of a number after a name, and the least number of letters of a shortened name."""

_BRIEF = 12
"""Letters of a name on a narrow screen, where the page shows the field `brief`."""

_ROOM = 12
"""Pixels between the end of a line and its label, which a thin line connects."""

_NARROW, _LETTER = 300, 7.5
"""Least width of a chart without its labels, and width of a letter, in pixels."""


def with_rim(base: Any, encoding: dict[str, Any], **look: Any) -> list[Any]:
    """Make two layers of text that stays legible over lines: a rim in the background's colour, and the text.

    Args:
        base: chart that encodes positions and texts.
        encoding: further encoding of the text, not of the rim.
        look: properties of both marks; `style` only of the text.
    """
    style = look.pop("style", None)
    text = base.mark_text(style=style, **look) if style else base.mark_text(**look)
    return [base.mark_text(style="rim", **look), text.encode(**encoding)]


def short_names(names: Sequence[str], letters: int) -> dict[str, str]:
    """Shorten names; names with the same beginning keep the part in which they differ.

    Args:
        names: names in one chart.
        letters: largest number of letters of a name, 8 or more.

    Examples:
        >>> list(short_names(["PANM", "Gossip (k = 5, within = cluster)"], 16).values())
        ['PANM', 'Gossip k=5…']
        >>> list(short_names(["Gossip (k = 5, lr = 0.1)", "Gossip (k = 9, lr = 0.1)"], 12).values())
        ['Gossip k=5…', 'Gossip k=9…']
        >>> list(short_names(["Gossip (k = 5, within = cluster)", "Gossip (k = 5, loss = Focal)"], 16).values())
        ['Gossip 5 cluster', 'Gossip 5 Focal']
    """
    short = {name: _short(name, letters) for name in names}
    of_setting = _by_setting(names, letters)
    for name in short:
        if name in of_setting:
            short[name] = of_setting[name]
            continue
        alike = [other for other in short if other != name and _short(other, letters) == _short(name, letters)]
        if alike:
            same = max(_letters_in_common(name, other) for other in alike)
            rest = name[min(same, len(name) - 1) :][: letters - letters // 3 - 1]
            short[name] = f"{name[: letters - len(rest) - 1].rstrip(' ,=(')}…{rest.rstrip()}"
    for brief in [brief for brief, number in Counter(short.values()).items() if number > 1]:
        alike = [name for name in short if short[name] == brief]  # these names differ only in their length
        for number, name in enumerate(alike, 1):
            short[name] = f"{name[: letters - 1 - len(str(number))]}…{number}"
    return short


def _by_setting(names: Sequence[str], letters: int) -> dict[str, str]:
    """Shorten names with settings in brackets, without those that do not fit.

    A name that fits once its equals signs have no spaces keeps all of its settings. Else it keeps one setting that no
    other name has, or else the values of all settings, after the name if there is room.

    Examples:
        >>> _by_setting(["Gossip (k = 5, lr = 0.1)", "Gossip (k = 5, lr = 1)", "PANM"], 21)
        {'Gossip (k = 5, lr = 0.1)': 'Gossip (k=5, lr=0.1)', 'Gossip (k = 5, lr = 1)': 'Gossip (k=5, lr=1)'}
        >>> names = [f"AFIND+ (similarity = {kind}, lr = {lr})" for kind in ("cosine", "l2") for lr in (0.01, 0.1)]
        >>> list(_by_setting(names, 18).values())
        ['AFIND+ cosine 0.01', 'AFIND+ cosine 0.1', 'AFIND+ l2 0.01', 'AFIND+ l2 0.1']
        >>> list(_by_setting(names, 10).values())
        ['cosi… 0.01', 'cosine 0.1', 'l2 0.01', 'l2 0.1']
    """
    parts = {name: (base, rest[:-1].split(", ")) for name in names for base, _, rest in [name.partition(" (")] if rest}
    held = Counter((base, setting) for base, settings in parts.values() for setting in settings)
    values = {name: [one.partition(" = ")[2] or one for one in settings] for name, (_, settings) in parts.items()}
    texts = {name: (" ".join(of_name), _cut(of_name, letters)) for name, of_name in values.items()}
    number = Counter(text for of_name in texts.values() for text in {*of_name})
    found = {}
    for name, (base, settings) in parts.items():
        own = [f"{base} {setting}…" for setting in settings if held[base, setting] == 1]
        own += [text for brief in texts[name] if number[brief] == 1 for text in (f"{base} {brief}", brief)]
        fitting = [text for text in (name, *own) if len(text.replace(" = ", "=")) <= letters]
        if len(name) > letters and fitting:
            found[name] = fitting[0].replace(" = ", "=")
    return found


def _cut(values: Sequence[str], letters: int) -> str:
    """Join values; the longest one is cut if they are too long together.

    Examples:
        >>> _cut(["distance", "0.05"], 12)
        'distan… 0.05'
    """
    longest = max(range(len(values)), key=lambda at: len(values[at]))
    kept = letters - sum(len(value) + 1 for at, value in enumerate(values) if at != longest)
    return " ".join(_short(value, max(2, kept)) if at == longest else value for at, value in enumerate(values))


def _short(name: str, letters: int) -> str:
    return name if len(name) <= letters else f"{name[: letters - 1].rstrip(' ,=(')}…"


def _letters_in_common(a: str, b: str) -> int:
    """Count the letters at the beginning that two names have in common."""
    return next((i for i, (one, other) in enumerate(zip(a, b, strict=False)) if one != other), min(len(a), len(b)))
