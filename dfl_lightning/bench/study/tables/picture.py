"""A table as a picture: a panel for each column, with each row's mean, its interval and the published number."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dfl_lightning.bench.report.charts.base import altair, data
from dfl_lightning.bench.report.charts.colours import method_colour
from dfl_lightning.bench.report.charts.line_ends import with_rim
from dfl_lightning.bench.report.look.theme import LIGHT, config
from dfl_lightning.bench.report.rendering import rendered
from dfl_lightning.bench.report.writing import check_report
from dfl_lightning.bench.stats.statistics import t_interval
from dfl_lightning.bench.stats.words import spread_in_words
from dfl_lightning.bench.study.tables.table import Table

_WIDTH, _TEXT, ROW = 230, 210, 24
"""Pixels: the width of a panel's plot, that of a panel of words, and the height of each row in both."""

_PANELS_A_LINE = 4
"""Number of panels side by side."""

_NAMES, _LETTER = 120, 5.6
"""Pixels: the width of the rows' names, and of a letter of the notes, on average."""


def draw(table: Table, file: Path) -> Path:
    """Draw a table of results as a PNG.

    Args:
        table: means and intervals over seeds.
        file: path of the picture.

    Returns:
        The path of the picture.

    Raises:
        UserError: Altair or vl-convert is not installed.
    """
    check_report()
    image = rendered(whole(table).to_dict())
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(image)
    return file


def whole(table: Table) -> Any:
    """Build an Altair chart of all panels side by side, with the title above and the notes below."""
    alt, columns = altair(), drawn_columns(table)
    above = {"anchor": "start", "frame": "group", "fontSize": 13}
    panels = [
        panel(table, column, table.rows, named=at % _PANELS_A_LINE == 0).properties(
            title=alt.TitleParams(text=textwrap.wrap(column, _WIDTH // 8), **above), width=_WIDTH
        )
        for at, column in enumerate(columns)
    ]
    for heading, said in table.further.items():
        title = alt.TitleParams(text=textwrap.wrap(heading, _TEXT // 8), **above)
        panels.append(words(said, named=len(panels) % _PANELS_A_LINE == 0).properties(title=title, width=_TEXT))
    letters = int((_WIDTH * min(len(columns), _PANELS_A_LINE) + _NAMES) / _LETTER)
    notes = [line for note in [*table.notes, f"made: {table.made}"] for line in textwrap.wrap(note, letters)]
    small = {"fontSize": 11, "fontWeight": "normal", "color": LIGHT["soft"]}
    below = alt.TitleParams(text=notes, orient="bottom", anchor="start", offset=24, lineHeight=15, **small)
    title = alt.TitleParams(
        text=textwrap.wrap(table.title, letters * 2 // 3), subtitle=textwrap.wrap(signs(table), letters), offset=16
    )
    lines = [alt.hconcat(*panels[at : at + _PANELS_A_LINE], spacing=18) for at in range(0, len(panels), _PANELS_A_LINE)]
    return alt.vconcat(alt.vconcat(*lines, title=below), title=title, padding=14, config=config(LIGHT))


def drawn_columns(table: Table) -> list[str]:
    """Return the columns in which at least one row has cells."""
    return [c for c in table.columns if any(table.places[row, c].remark != "–" for row in table.rows)]


def signs(table: Table) -> str:
    """Explain the marks of the panels in a sentence."""
    several = any(place.sd is not None for place in table.places.values())
    said = (
        "Dots: mean over seeds, with its 95 % t-interval, and small ones for the seeds" if several else "Dots: measured"
    )
    if len(table.rows) > 1:
        said += "; the large ones are the best of their columns"
    if any(rival.sign == "≈" for rival in table.rivals.values()):
        said += "; ≈: not told apart from it, by the differences of equal seeds"
    if any(rival.sign == "*" for rival in table.rivals.values()):
        said += "; *: p < 0.05"
    if any(place.published is not None for place in table.places.values()):
        said += "; diamonds: published, with the standard deviation where there is one"
    return f"{said}."


def panel(table: Table, column: str, names: Sequence[str], named: bool = True) -> Any:
    """Build an Altair chart of one column, with the rows from top to bottom in the table's order.

    Args:
        table: means and intervals over seeds.
        column: name of the column.
        names: names of all methods; their order determines the colours.
        named: whether to show the rows' names.
    """
    alt = altair()
    rows = [_row(table, row, column) for row in table.rows]
    chart = alt.Chart(data(rows))
    y = alt.Y("row:N").sort(table.rows).axis(alt.Axis(title=None, grid=True, labelLimit=170) if named else None)
    axis = {"title": table.measures[column].axis, "grid": True, "tickCount": 5}
    tips = [alt.Tooltip(f"{name}:N") for name in ("row", "mean ± sd", "as published", "seeds")]
    layers = []
    if any("published" in row for row in rows):
        printed = chart.transform_filter("isValid(datum.published)")
        x = alt.X("published:Q").scale(zero=False, padding=20).axis(**axis)
        diamond = {"shape": "diamond", "size": 75, "filled": False, "strokeWidth": 1.4, "opacity": 1}
        layers += [
            printed.mark_rule(style="note").encode(x="published_low:Q", x2="published_high:Q", y=y),
            printed.mark_point(style="note", **diamond).encode(x=x, y=y, tooltip=tips),
        ]
    if any("measured" in row for row in rows):
        known = chart.transform_filter("isValid(datum.measured)")
        at_right = known.transform_calculate(right="max(datum.high, datum.published_high || datum.high)")
        x = alt.X("measured:Q").scale(zero=False, padding=20).axis(**axis)
        size = alt.condition("datum.best", alt.value(150), alt.value(65))
        colour = method_colour(names, "row")
        layers += [
            known.mark_rule(strokeWidth=2.5, opacity=0.55).encode(x="low:Q", x2="high:Q", y=y, color=colour),
            *(
                known.transform_filter(f"isValid(datum['{seed}'])")
                .mark_point(filled=True, opacity=0.45, size=18)
                .encode(x=alt.X(f"{seed}:Q"), y=y, color=colour)
                for seed in dict.fromkeys(name for row in rows for name in row if name.startswith("seed "))
            ),
            known.mark_point(filled=True, opacity=1).encode(x=x, y=y, color=colour, size=size, tooltip=tips),
            at_right.mark_text(align="left", dx=8, style="strong").encode(x="right:Q", y=y, text="sign:N"),
        ]
    remarks = chart.encode(x=alt.value(4), y=y, text="remark:N")
    layers += with_rim(remarks, {}, align="left", style="note")
    return alt.layer(*layers).properties(height=ROW * len(table.rows))


def words(said: Mapping[str, str], named: bool = True) -> Any:
    """Build an Altair chart of a column of words, such as what a client of each row receives.

    Args:
        said: text by row, from top to bottom.
        named: whether to show the rows' names.
    """
    alt = altair()
    chart = alt.Chart(data([{"row": row, "said": text} for row, text in said.items()]))
    axis = alt.Axis(title=None, grid=True, labelLimit=170, domain=False) if named else None
    y = alt.Y("row:N").sort(list(said)).axis(axis)
    return (
        chart.mark_text(align="left", color=LIGHT["ink"])
        .encode(x=alt.value(0), y=y, text="said:N")
        .properties(height=ROW * len(said))
    )


def _row(table: Table, row: str, column: str) -> dict[str, Any]:
    place, rival, text = table.places[row, column], table.rivals.get((row, column)), table.measures[column].text
    found: dict[str, Any] = {"row": row, "remark": "" if place.mean is not None else place.remark}
    if place.mean is not None:
        low, high = t_interval(list(place.values.values())) or (place.mean, place.mean)
        around = (
            ""
            if place.sd is None
            else f" ± {spread_in_words(place.sd, table.measures[column].like(place.sd, place.mean))}"
        )
        found |= {"measured": place.mean, "low": low, "high": high, "mean ± sd": f"{text(place.mean)}{around}"}
        found |= {"best": table.is_best(row, column), "seeds": ", ".join(map(str, place.values))}
        if len(place.values) > 1:
            found |= {f"seed {seed}": value for seed, value in place.values.items()}
        seeds = place.seeds_in_words(len(table.plan.seeds)) if place.asked else ""
        found["sign"] = " ".join(word for word in ("" if rival is None else rival.sign, seeds) if word)
    if place.published is not None:
        mean, sd = place.published.mean, place.published.sd
        found |= {"published": mean, "published_low": mean - (sd or 0.0), "published_high": mean + (sd or 0.0)}
        found["as published"] = text(mean) + ("" if sd is None else f" ± {text(sd)}")
    return found
