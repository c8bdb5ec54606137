"""What all charts start from: rows inside a chart, its size and theme, and what is drawn of runs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

from dfl_lightning.bench.report.charts.theme import LIGHT, config
from dfl_lightning.bench.report.comparable import for_charts
from dfl_lightning.bench.report.methods import Method, as_methods
from dfl_lightning.runs.reading import Run
from dfl_lightning.utils.errors import UserError
from dfl_lightning.utils.score import Score

if TYPE_CHECKING:
    import altair as alt

Row = dict[str, Any]
WIDTH, HEIGHT, TALLEST = 560, 300, 600

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


def height_for(names: Sequence[str]) -> int:
    """Return the height of a chart with room for a name at the end of each line: of few lines the ordinary one.

    Args:
        names: of the methods that are drawn.

    Examples:
        >>> height_for(["A"] * 15), height_for(["A"] * 31), height_for(["A"] * 99)
        (300, 546, 600)
    """
    return min(TALLEST, max(HEIGHT, 50 + 16 * len(names)))


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
