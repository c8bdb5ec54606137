"""What all charts share: how methods are distinguished, axes in per cent, labels at the ends of lines."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np

from dfl_lightning.report.charts.theme import DASHES, DOTTED, LIGHT, config
from dfl_lightning.report.comparable import for_charts
from dfl_lightning.report.methods import Method, as_methods
from dfl_lightning.report.reading import Run
from dfl_lightning.utils.errors import UserError
from dfl_lightning.utils.score import Score

if TYPE_CHECKING:
    import altair as alt

Row = dict[str, Any]
WIDTH, HEIGHT = 560, 300

LOCAL = "Local"
"""What training alone is called; it has a colour and dashes of its own."""

TILES = "tiles"
"""Name of a chart, or of a layer, whose rectangles cover an area without gaps."""


def altair() -> Any:
    """The library that draws, where it is installed.

    Raises:
        UserError: it is not.
    """
    try:
        import altair as alt
    except ImportError as error:
        raise UserError("charts need Altair and vl-convert: pip install 'dfl-lightning[report]'") from error
    return alt


def data(rows: Sequence[Row]) -> alt.Data:
    """Rows as data inside the chart; numbers that are not finite become null.

    Args:
        rows: a dict each.
    """
    values = [{k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()} for row in rows]
    found: alt.Data = _inline()(values=values)
    return found


@cache
def _inline() -> Any:
    """Altair's inline data without what it does to each row: it copies, converts and checks them again and again."""

    class Rows(altair().InlineData):  # type: ignore[misc]
        _class_is_valid_at_instantiation = False

        def __deepcopy__(self, memo: Any = None) -> Any:
            return self  # rows do not change

        def to_dict(self, *args: Any, **options: Any) -> dict[str, Any]:
            return {key: value for key, value in self._kwds.items() if isinstance(value, (list, str))}

    return Rows


@contextmanager
def unchecked() -> Iterator[None]:
    """Within it Altair does not check each part of a chart against its schema: for charts that tests have checked."""
    from altair.utils.schemapi import debug_mode

    with debug_mode(False):
        yield


def finished(chart: Any, width: int = WIDTH, height: int = HEIGHT) -> Any:
    """A chart with its size, in the light theme; the page sets its own theme and width.

    Args:
        chart: of altair.
        width: in pixels.
        height: in pixels.
    """
    autosize = altair().AutoSizeParams(type="fit", contains="padding")
    whole = chart.copy(deep=False)  # `properties` would check each value against the schema, also within `unchecked`
    for name, value in {"width": width, "height": height, "autosize": autosize, "config": config(LIGHT)}.items():
        setattr(whole, name, value)
    return whole


def drawn(runs: Sequence[Run | Method]) -> list[Method]:
    """What a chart of these runs draws; see `for_charts`."""
    return for_charts(as_methods(runs))


def score_of(methods: Sequence[Method]) -> Score:
    """By what methods of one task are compared.

    Args:
        methods: one or more.
    """
    return methods[0].score if methods else Score()


def judged(rows: Sequence[Row], methods: Sequence[Method]) -> list[Row]:
    """The rows that axes are made for: of the methods that can be compared, or of all where none can.

    Args:
        rows: with their `method`.
        methods: as charts draw them.
    """
    aside = {method.name for method in methods if method.aside}
    return [row for row in rows if row["method"] not in aside] or list(rows)


def faintness(methods: Sequence[Method]) -> Any:
    """The opacity of a line by its method: those that cannot be compared are faint."""
    alt = altair()
    aside = alt.FieldOneOfPredicate(field="method", oneOf=[method.name for method in methods if method.aside])
    return alt.condition(aside, alt.value(0.4), alt.value(1))


def said_after(method: Method, words: str) -> str:
    """What stands after a method's name at the end of its line: why it is not compared, or else these words.

    Args:
        method: as charts draw it.
        words: such as a number; may be empty.
    """
    if method.aside:
        return f": {method.aside}"
    return f"  {words}" if words else ""


def method_colour(names: Sequence[str], field: str = "method") -> Any:
    """Colours by method, in the order of the names.

    Args:
        names: of the methods.
        field: of the rows that has the name.
    """
    alt = altair()
    return alt.Color(f"{field}:N").scale(domain=colour_places(names)).legend(None)


def method_dash(names: Sequence[str]) -> Any:
    """Dashes by method, in the order of the names."""
    alt, dashes = altair(), [dash_at(place) for place in range(len(colour_places(names)))]
    return alt.StrokeDash("method:N").scale(domain=colour_places(names), range=dashes).legend(None)


def colour_places(names: Sequence[str]) -> list[str]:
    """The names in the order of their colours: training alone has the palette's last one, whoever else there is.

    Blanks stand where no method has that colour.

    Args:
        names: of the methods.

    Examples:
        >>> colour_places(["A", "Local", "B"])
        ['A', 'B', '  ', '   ', '    ', '     ', 'Local']
    """
    number, found = len(LIGHT["category"]), [name for name in names if name != LOCAL]
    for place in range(number - 1, len(found) + len(found) // (number - 1) + 1, number):
        found.insert(place, " " * place)
    found += [" " * place for place in range(len(found), number)] * (LOCAL in names)
    if LOCAL in names:
        found[number - 1] = LOCAL
    return found


def dash_at(place: int) -> list[float]:
    """The dashes of the method at a place among the colours.

    Args:
        place: in `colour_places`.
    """
    number = len(LIGHT["category"])
    return DOTTED if place == number - 1 else DASHES[(place - place // number) % len(DASHES)]


def whole_axis(field: str, title: str, rows: Sequence[Row], ticks: int, start: int | None = None) -> Any:
    """A horizontal axis of whole numbers, each of which stands there once.

    Args:
        field: of the rows.
        title: of the axis.
        rows: one or more.
        ticks: at most about so many.
        start: of the axis; default: the least number.
    """
    alt = altair()
    values = [int(row[field]) for row in rows]
    first, last = min(values) if start is None else start, max(values)
    axis = alt.Axis(title=title, format="d", values=whole_ticks(first, last, ticks))
    scale = alt.Scale(nice=False, zero=False) if start is None else alt.Scale(nice=False, domain=[first, last])
    return alt.X(f"{field}:Q").axis(axis).scale(scale)


def whole_ticks(first: int, last: int, most: int) -> list[int]:
    """Whole numbers from first to last that are multiples of 1, 2, 5, 10, 20 and so on.

    Args:
        first: least number.
        last: largest number.
        most: how many steps there may be between them.

    Examples:
        >>> whole_ticks(1, 3, 5), whole_ticks(1, 30, 5)
        ([1, 2, 3], [10, 20, 30])
    """
    step = next(step for step in _steps() if (last - first) / step <= most)
    return list(range(step * math.ceil(first / step), last + 1, step))


def _steps() -> Iterator[int]:
    """1, 2, 5, 10, 20, 50 and so on."""
    return (factor * 10**power for power in count() for factor in (1, 2, 5))


def round_axis(rows: Sequence[Row], ticks: int) -> Any:
    """A horizontal axis of rounds, which people count from 1.

    Args:
        rows: with their `round`.
        ticks: at most about so many.
    """
    return whole_axis("round", "round", rows, ticks)


def cut(title: str, values: Iterable[float | None], domain: Sequence[float]) -> str:
    """The title of an axis, which says where it cuts values off.

    Args:
        title: of the axis.
        values: that the chart has, in its unit.
        domain: of the axis.

    Examples:
        >>> cut("test accuracy, %", [12.0, 93.0], [55, 95])
        'test accuracy, %, cut below 55'
    """
    known = [value for value in values if value is not None]
    sides = [("below", domain[0], min(known, default=domain[0]) < domain[0])]
    sides.append(("above", domain[1], max(known, default=domain[1]) > domain[1]))
    words = " and ".join(f"{side} {end:g}" for side, end, is_cut in sides if is_cut)
    return f"{title}, cut {words}" if words else title


def per_cent_axis(title: str = "test accuracy, %", **options: Any) -> Any:
    """A vertical axis with a horizontal title above its end.

    Args:
        title: of the axis.
        options: further ones of `altair.Axis`.
    """
    return altair().Axis(
        title=title, titleAngle=0, titleAlign="left", titleAnchor="end", titleX=-34, titleY=-12, tickCount=6, **options
    )


def score_bounds(values: Sequence[float], score: Score) -> list[float]:
    """An axis domain of a task's score: of a share within 0 to 100, of others around the values, on round numbers.

    Args:
        values: in the unit of the chart; those that are not finite do not count.
        score: of the task.
    """
    if score.percent:
        return bounds(values)
    known = [v for v in values if v is not None and math.isfinite(v)] or [0.0, 1.0]
    span = max(known) - min(known) or abs(max(known)) or 1.0
    step = 10.0 ** math.floor(math.log10(span / 10))
    step *= next(factor for factor in (1, 2, 5, 10) if factor * step >= span / 20)
    ends = math.floor((min(known) - 0.06 * span) / step), math.ceil((max(known) + 0.06 * span) / step)
    return [float(f"{step * end:.6g}") for end in ends]


def typical(values: Iterable[float], score: Score) -> list[float]:
    """The values without the worst 4 %, those of the first rounds, for which no axis is made; in order.

    Args:
        values: in the unit of the chart.
        score: of the task.
    """
    order = sorted(values)
    few = len(order) // 25
    return order[few:] if score.higher_is_better else order[: len(order) - few]


def rounded_for(value: float, score: Score) -> float:
    """A number of a chart, without digits that cannot be seen.

    Args:
        value: in the unit of the chart.
        score: of the task.
    """
    return round(float(value), 3) if score.percent else float(f"{value:.5g}")


def bounds(values: Sequence[float], low: float = 0.0, high: float = 100.0, margin: float = 0.06) -> list[float]:
    """An axis domain around the values with a margin at both ends, on multiples of 5.

    Args:
        values: those that are not finite do not count.
        low: least bound.
        high: largest bound.
        margin: share of the values' range that is added at each end.

    Examples:
        >>> bounds([62.0, 91.0])
        [60, 95]
    """
    known = [v for v in values if v is not None and math.isfinite(v)]
    if not known:
        return [low, high]
    least, most = min(known), max(known)
    room = max((most - least) * margin, 1.0)
    return [max(low, 5 * math.floor((least - room) / 5)), min(high, 5 * math.ceil((most + room) / 5))]


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
        if row[y] is not None and (row[x] > 0 or not ends):
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
    ended = chart.transform_filter("datum.inside")
    base = chart.encode(x=alt.X("label_x:Q"), y=alt.Y("label_y:Q").scale(domain=vertical), text=alt.Text("label:N"))
    colour = method_colour(names)
    end_x, end_y = alt.X("end_x:Q"), alt.Y("end_y:Q").scale(domain=vertical)
    return [
        ended.mark_rule(strokeWidth=1, opacity=0.45, x2Offset=_ROOM - 2).encode(
            x=end_x, y=end_y, x2=alt.X2("label_x:Q"), y2=alt.Y2("label_y:Q"), color=colour
        ),
        ended.mark_point(filled=True, opacity=1, size=36).encode(x=end_x, y=end_y, color=colour),
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
