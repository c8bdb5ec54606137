"""Names at the ends of lines: shortened, spread so that none covers another, and with a rim."""

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
    """What stands after a method's name at the end of its line: why it is not compared, or else these words.

    Args:
        method: as charts draw it.
        words: such as a number; may be empty.
    """
    if method.aside:
        return f": {method.aside}"
    return f"  {words}" if words else ""


def ended(method: Method, field: str, value: float, more: str = "") -> Row:
    """Return where a line ends, and what stands there: a value that is not finite is beyond the worst end of the axis.

    Args:
        method: as charts draw it.
        field: of the chart, with the number in its unit.
        value: the score, not times its factor.
        more: after the number.
    """
    score = method.score
    if not math.isfinite(value):
        return {field: score.merit(-math.inf), "after": said_after(method, f"not finite{more}")}
    return {field: value * score.factor, "after": said_after(method, f"{score.number(value)}{more}")}


def spread_out(positions: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Positions of labels that are at least `gap` apart, as close to the wanted ones as their order allows.

    Args:
        positions: the wanted ones.
        gap: least distance.
        low: end of the axis.
        high: other end of the axis.

    Examples:
        >>> spread_out([10.0, 10.0, 50.0], 4.0, 0.0, 100.0)
        [8.0, 12.0, 50.0]
    """
    order = sorted(range(len(positions)), key=lambda i: positions[i])
    blocks: list[tuple[float, int]] = []  # of the centre and the number of labels
    for i in order:
        centre, count = min(max(positions[i], low), high), 1
        while blocks and blocks[-1][0] + gap * (blocks[-1][1] + count) / 2 > centre:
            before, others = blocks.pop()
            centre = (before * others + centre * count) / (others + count)
            count += others
            half = gap * (count - 1) / 2
            centre = min(max(centre, low + half), max(high - half, low + half))
        blocks.append((centre, count))
    placed = [centre + gap * (k - (count - 1) / 2) for centre, count in blocks for k in range(count)]
    found = [0.0] * len(positions)
    for i, place in zip(order, placed, strict=True):
        found[i] = place
    return found


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
) -> list[Any]:
    """Names at the ends of lines, in their colours, spread so that none covers another, with a rim around each letter,
    and a dot and a thin line from each end to its name.

    A name for which the chart has no room after the end of its line, or over which another line would run there, stands
    at the side of the chart.

    Args:
        rows: a row a line: `method`, where the line ends, and where wanted what stands `after` its name.
        names: of all methods.
        y: the field of the end.
        domain: of the axis.
        x: the field of the end's other coordinate.
        height: of the chart.
        letters: of a name; the others are left out.
        ends: both ends of the other axis, which is logarithmic; default: 0 and the last end of a line.
        lines: the points of all lines, in order; default: they run nowhere near the names.
        lift: pixels by which names stand higher than the ends.
    """
    alt = altair()
    pixel = (domain[1] - domain[0]) / (height - 50)
    gap = 16 * pixel
    rows = with_labels(rows, y, (height - 50) // 16)
    most = ends[1] if ends else max((row[x] for row in rows), default=0)
    lengths = [short_names([row["method"] for row in rows], most_letters) for most_letters in (letters, _BRIEF)]
    placed = []

    def part(value: float) -> float:
        return math.log(value / ends[0]) / math.log(most / ends[0]) if ends else value / (most or 1)

    curves: dict[str, list[tuple[float, float]]] = {}
    for row in lines:
        if row[y] is not None and math.isfinite(row[y]) and (row[x] > 0 or not ends):
            curves.setdefault(row["method"], []).append((part(row[x]), row[y]))
    for row in rows:
        after = row.get("after", "")
        label, brief = (
            _with_words(shown[row["method"]], after, most_letters)
            for shown, most_letters in zip(lengths, (letters, _BRIEF), strict=True)
        )
        begin = part(row[x])
        stop = begin + (_ROOM + len(label) * _LETTER) / _NARROW
        others = [curve for method, curve in curves.items() if method != row["method"]]
        free = (1 - begin) * _NARROW > len(label) * _LETTER and not any(
            _runs_over(curve, begin, stop, row[y] - gap / 2, row[y] + gap / 2) for curve in others
        )
        at = row[x] if free else most
        end = {"end_x": row[x], "end_y": row[y], "inside": bool(domain[0] <= row[y] <= domain[1])}
        placed.append({"method": row["method"], "label": label, "brief": brief, "label_x": at, **end})
    for side in (True, False):  # names within the chart and at its side do not meet
        group = [one for one in placed if (one["label_x"] == most) == side]
        for one, place in zip(
            group, spread_out([one["end_y"] + lift * pixel for one in group], gap, *domain), strict=True
        ):
            one["label_y"] = place
    chart, vertical = alt.Chart(data(placed)), list(domain)
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
        *(marks if any(one["inside"] for one in placed) else []),
        *with_rim(base, {"color": colour}, align="left", dx=_ROOM, fontSize=12, fontWeight=600, clip=False),
    ]


def _runs_over(curve: Sequence[tuple[float, float]], left: float, right: float, low: float, high: float) -> bool:
    """Whether a line of straight pieces runs through a rectangle.

    Args:
        curve: its points, from left to right.
        left: of the rectangle, as its other sides are.
        right: of it.
        low: of it.
        high: of it.

    Examples:
        >>> _runs_over([(0, 0), (4, 4)], 1, 2, 1.5, 3), _runs_over([(0, 0), (4, 4)], 1, 2, 3, 4)
        (True, False)
    """
    points = [(left + k * (right - left) / 16) for k in range(17)]
    xs, ys = zip(*curve, strict=True)
    within = [value for value, at in zip(np.interp(points, xs, ys), points, strict=True) if xs[0] <= at <= xs[-1]]
    return bool(within and min(within) <= high and max(within) >= low)


def _with_words(name: str, after: str, letters: int) -> str:
    """A label: a reason takes the room of letters of the name, and is left out where there is none for it.

    Args:
        name: of a method, shortened.
        after: a number, or `: ` and a reason.
        letters: that there is room for, beside a number.
    """
    if not after.startswith(": "):
        return f"{name}{after}"
    room = letters + _NUMBER - len(after)
    return f"{_short(name, room)}{after}" if room >= min(_LEAST, len(name)) else name


def with_labels(rows: Sequence[Row], y: str, most: int) -> list[Row]:
    """The lines whose names a chart has room for: the highest ones, the lowest one, and training alone.

    Args:
        rows: a row a line.
        y: the field of the line's end.
        most: labels, 3 or more.

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
"""Letters of a number after a name, and the least that a name is shortened to."""

_BRIEF = 12
"""Letters of a name on a phone: the page shows the field `brief` there."""

_ROOM = 12
"""Pixels between the end of a line and its label, over which a thin line leads from the one to the other."""

_NARROW, _LETTER = 300, 7.5
"""The least width of a chart beside its labels, and that of a letter, in pixels."""


def with_rim(base: Any, encoding: dict[str, Any], **look: Any) -> list[Any]:
    """Text that stays legible where lines run under it: a layer in the background's colour, and the text.

    Args:
        base: a chart with the places and texts.
        encoding: of the text alone.
        look: of both.
    """
    style = look.pop("style", None)
    text = base.mark_text(style=style, **look) if style else base.mark_text(**look)
    return [base.mark_text(style="rim", **look), text.encode(**encoding)]


def short_names(names: Sequence[str], letters: int) -> dict[str, str]:
    """Names of at most so many letters; those that begin alike keep the part in which they differ.

    Args:
        names: that stand in one chart.
        letters: 8 or more.

    Examples:
        >>> list(short_names(["PANM", "Gossip (k = 5, within = cluster)"], 16).values())
        ['PANM', 'Gossip (k = 5…']
        >>> list(short_names(["Gossip (k = 5, within = cluster)", "Gossip (k = 5, loss = Focal)"], 16).values())
        ['Gossi…within = c', 'Gossi…loss = Foc']
    """
    found = {name: _short(name, letters) for name in names}
    for name in found:
        alike = [other for other in found if other != name and _short(other, letters) == _short(name, letters)]
        if alike:
            same = max(_letters_in_common(name, other) for other in alike)
            rest = name[min(same, len(name) - 1) :][: letters - letters // 3 - 1]
            found[name] = f"{name[: letters - len(rest) - 1].rstrip(' ,=(')}…{rest.rstrip()}"
    for brief in [brief for brief, number in Counter(found.values()).items() if number > 1]:
        alike = [name for name in found if found[name] == brief]  # they differ in their lengths only
        for number, name in enumerate(alike, 1):
            found[name] = f"{name[: letters - 1 - len(str(number))]}…{number}"
    return found


def _short(name: str, letters: int) -> str:
    return name if len(name) <= letters else f"{name[: letters - 1].rstrip(' ,=(')}…"


def _letters_in_common(a: str, b: str) -> int:
    """How many letters two names begin with alike."""
    return next((i for i, (one, other) in enumerate(zip(a, b, strict=False)) if one != other), min(len(a), len(b)))
