"""Common parts of all charts: rows inside a chart, its size and theme, and the choice of runs that are drawn."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

from dfl_lightning.bench.report.comparable import for_charts
from dfl_lightning.bench.report.look.theme import LIGHT, config
from dfl_lightning.bench.report.methods import Method, as_methods
from dfl_lightning.runs.reading import Run
from dfl_lightning.utils.errors import UserError
from dfl_lightning.utils.score import Score

if TYPE_CHECKING:
    import altair as alt

Row = dict[str, Any]
WIDTH, HEIGHT, TALLEST = 560, 300, 600

TILES = "tiles"
"""Name of charts and layers whose rectangles cover an area without gaps."""


def altair() -> Any:
    """Import Altair, the library of charts.

    Raises:
        UserError: Altair is not installed.
    """
    try:
        import altair as alt
    except ImportError as error:
        raise UserError("charts need Altair and vl-convert: pip install 'dfl-lightning[report]'") from error
    return alt


def data(rows: Sequence[Row]) -> alt.Data:
    """Put rows into a chart as its data; numbers that are not finite become null."""
    values = [{k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()} for row in rows]
    inline: alt.Data = _inline_data_class()(values=values)
    return inline


@cache
def _inline_data_class() -> Any:
    """Create a fast class of inline data: Altair's own copies, converts and checks each row again and again."""

    class Rows(altair().InlineData):  # type: ignore[misc]
        _class_is_valid_at_instantiation = False

        def __deepcopy__(self, memo: Any = None) -> Any:
            return self  # rows never change, so that no copy is needed

        def to_dict(self, *args: Any, **options: Any) -> dict[str, Any]:
            return {key: value for key, value in self._kwds.items() if isinstance(value, (list, str))}

    return Rows


@contextmanager
def unchecked() -> Iterator[None]:
    """Disable Altair's checks of charts against their schema within the context, since tests have checked them."""
    from altair.utils.schemapi import debug_mode

    with debug_mode(False):
        yield


def height_for(names: Sequence[str]) -> int:
    """Return the height of a chart, in pixels, with room for a name at the end of each line.

    The height is from `HEIGHT` to `TALLEST`.

    Args:
        names: names of the methods that are drawn.

    Examples:
        >>> height_for(["A"] * 15), height_for(["A"] * 31), height_for(["A"] * 99)
        (300, 546, 600)
    """
    return min(TALLEST, max(HEIGHT, 50 + 16 * len(names)))


def finished(chart: Any, width: int = WIDTH, height: int = HEIGHT) -> Any:
    """Set size and light theme of a chart; the page replaces theme and width by its own.

    Args:
        chart: an Altair chart.
        width: in pixels.
        height: in pixels.
    """
    autosize = altair().AutoSizeParams(type="fit", contains="padding")
    whole = chart.copy(deep=False)  # `properties` would check values against the schema, even within `unchecked`
    for name, value in {"width": width, "height": height, "autosize": autosize, "config": config(LIGHT)}.items():
        setattr(whole, name, value)
    return whole


def drawn(runs: Sequence[Run | Method]) -> list[Method]:
    """Group runs into methods and prepare them for charts; see `for_charts`."""
    return for_charts(as_methods(runs))


def seed_fields(methods: Sequence[Method]) -> list[str]:
    """Name the fields of rows with the value of a single seed, `seed 0` and so on; empty if all methods have one seed.

    Args:
        methods: methods of the chart.
    """
    if all(len(method.runs) < 2 for method in methods):
        return []
    return list(dict.fromkeys(_seed_field(seed) for method in methods for seed in method.seeds))


def of_seeds(method: Method, values: Sequence[float | None], fields: Sequence[str]) -> Row:
    """Return the fields of a row for single seeds; None for seeds that the method lacks.

    Args:
        method: method of the row.
        values: a value for each of its runs.
        fields: what `seed_fields` returns for all methods of the chart.
    """
    own = dict(zip(map(_seed_field, method.seeds), values, strict=True))
    return {name: own.get(name) for name in fields}


def _seed_field(seed: Any) -> str:
    return f"seed {seed}"


def score_of(methods: Sequence[Method]) -> Score:
    """Return the score with which methods of one task are compared; the default score without methods."""
    return methods[0].score if methods else Score()


def judged(rows: Sequence[Row], methods: Sequence[Method]) -> list[Row]:
    """Return the rows for which axes are made: those of methods that can be compared, or all if none can.

    Args:
        rows: rows with a `method`.
        methods: methods as `for_charts` returns them.
    """
    aside = {method.name for method in methods if method.aside}
    return [row for row in rows if row["method"] not in aside] or list(rows)
