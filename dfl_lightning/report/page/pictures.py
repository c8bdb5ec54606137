"""The charts of the page as PNG files, and their rows as CSV."""

from __future__ import annotations

import csv
import io
import textwrap
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from dfl_lightning.report import charts
from dfl_lightning.report.methods import Method, seed_of
from dfl_lightning.report.page.helper import Helper
from dfl_lightning.report.page.limits import detailed
from dfl_lightning.report.page.sections import Figure
from dfl_lightning.utils.errors import UserError
from dfl_lightning.utils.files import write_atomically

_CHARACTERS = 88
"""Of a title's line."""


def linked_figures(methods: Sequence[Method]) -> list[Figure]:
    """The graph and the matrix of the last recorded round, of the first run of each method with charts of its own."""
    found = []
    for number, method in enumerate(detailed(methods)):
        run = method.runs[0]
        for name, make, what in (
            ("graph", charts.collaboration_graph, "who learns from whom"),
            ("matrix", charts.link_heatmap, "weights of the senders, receivers in rows"),
        ):
            try:
                chart = make(run)
            except UserError:
                continue
            words = f"Last recorded round, seed {seed_of(run)}"
            found.append(Figure(f"{name}-{number + 1}", f"{method.name}: {what}", words, chart, "square", "who"))
    return found


def write_pictures(figures: Sequence[Figure], folder: Path, helper: Helper, scale: float = 2.0) -> list[Path]:
    """Write a PNG and a CSV of each figure, named after it.

    Args:
        figures: of the page.
        folder: where they go.
        helper: draws some of them; its script has been asked for.
        scale: pixels of the PNG for one of the chart.

    Returns:
        The files.

    Raises:
        UserError: the folder cannot be written.
    """
    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        specs = [titled(figure) for figure in figures]
        for figure, spec, image in zip(figures, specs, helper.draw(specs, scale), strict=True):
            picture, table = folder / f"{figure.name}.png", folder / f"{figure.name}.csv"
            write_atomically(picture, partial(_write, content=image))
            write_atomically(table, partial(_write, content=as_csv(rows_of(spec)).encode()))
            written += [picture, table]
    except OSError as error:
        raise UserError(f"{folder}: pictures cannot be written ({error.strerror}); choose another folder") from error
    return written


def _write(file: BinaryIO, content: bytes) -> None:
    file.write(content)


def titled(figure: Figure) -> dict[str, Any]:
    """The chart's specification, in the light theme, with its words above it."""
    spec: dict[str, Any] = figure.chart.to_dict(validate=False)
    words = textwrap.wrap(figure.note, _CHARACTERS)
    spec["title"] = {"text": textwrap.wrap(figure.title, _CHARACTERS - 20), "subtitle": words, "offset": 14}
    spec["padding"] = 12
    spec.pop("autosize", None)  # a picture may be larger than its plot
    return spec


def rows_of(spec: Any) -> list[dict[str, Any]]:
    """The longest list of rows that a chart or one of its layers holds."""
    held = [part.get("data", {}).get("values", []) for part in [spec, *spec.get("layer", [])]]
    return max([*held, *spec.get("datasets", {}).values()], key=len)


def as_csv(rows: Sequence[dict[str, Any]]) -> str:
    """Rows as text; nothing for what is not known."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
