"""A table as a picture: a panel a column, each row's mean with its interval, and what the paper prints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dfl_lightning.report.statistics import t_interval
from dfl_lightning.study.table import Table


def draw(table: Table, file: Path) -> Path:
    """Draw a table of results as a PNG.

    Args:
        table: means and intervals over seeds.
        file: of the picture.

    Returns:
        The file.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = [c for c in table.columns if any(table.places[row, c].remark != "–" for row in table.rows)]
    width = 2.2 + 2.2 * len(columns)
    signs = "dots: mean over seeds with its 95 % t-interval, large: the best of its column"
    if any(place.published is not None for place in table.places.values()):
        signs += "; diamonds: published, with the standard deviation"
    text = "\n".join(_wrapped(note, int(28 * width)) for note in [signs, *table.notes, f"made: {table.made}"])
    lines = text.count("\n") + 1
    figure = Figure(figsize=(width, 1.3 + 0.3 * len(table.rows) + 0.09 * lines), dpi=150)
    canvas = FigureCanvasAgg(figure)
    axes = figure.subplots(1, len(columns), sharey=True, squeeze=False)[0]
    for axis, column in zip(axes, columns, strict=True):
        _panel(axis, table, column)
    axes[0].set_yticks(range(len(table.rows)), table.rows)
    axes[0].set_ylim(len(table.rows) - 0.5, -0.5)
    figure.suptitle(_wrapped(table.title, 20 + 24 * len(columns)), fontsize=9)
    figure.supxlabel(text, fontsize=5, ha="left", x=0.02)
    figure.set_layout_engine("constrained")
    file.parent.mkdir(parents=True, exist_ok=True)
    canvas.print_png(str(file))
    return file


def _panel(axis: Any, table: Table, column: str) -> None:
    for at, row in enumerate(table.rows):
        place = table.places[row, column]
        if place.published is not None:
            mean, sd = place.published.mean, place.published.sd or 0.0
            axis.plot([mean - sd, mean + sd], [at, at], color="tab:orange", linewidth=0.8)
            axis.plot(mean, at, marker="D", markersize=5, markerfacecolor="none", color="tab:orange")
        if place.mean is not None:
            interval = t_interval(list(place.values.values()))
            if interval is not None:
                axis.plot(interval, [at, at], color="tab:blue", linewidth=1.5)
            is_best = table.is_best(row, column)
            axis.plot(place.mean, at, marker="o", markersize=7 if is_best else 5, color="tab:blue")
        elif place.remark:
            axis.text(0.5, at, place.remark, transform=axis.get_yaxis_transform(), fontsize=6, ha="center", va="center")
    axis.set_title(column, fontsize=8)
    axis.grid(axis="x", linewidth=0.3)
    axis.tick_params(labelsize=7)
    axis.set_xlabel("%" if table.measure.is_accuracy else table.measure.name, fontsize=7)


def _wrapped(text: str, width: int) -> str:
    import textwrap

    return "\n".join(textwrap.wrap(text, width))
