"""Picture files of the page's charts, and their rows as CSV."""

from __future__ import annotations

import csv
import io
import textwrap
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from dfl_lightning.bench.report.charts.links import graph_chart, heatmap_chart, round_rows
from dfl_lightning.bench.report.methods import Method, seed_of
from dfl_lightning.bench.report.network import largest_weight, number_of_nodes
from dfl_lightning.bench.report.page.paper import Paper, figure_bytes
from dfl_lightning.bench.report.page.sections import Figure
from dfl_lightning.bench.report.page.sentences.limits import detailed
from dfl_lightning.utils.errors import UserError
from dfl_lightning.utils.storage.files import write_atomically

_CHARACTERS = 88
"""Largest number of characters in a line of a note under a title."""


def linked_figures(methods: Sequence[Method]) -> list[Figure]:
    """Draw the graph and the matrix of the last recorded round, for the first run of each method in `detailed`.

    There is no matrix with a server, since only the server receives models.
    """
    drawn = []
    for number, method in enumerate(detailed(methods)):
        run = method.runs[0]
        try:
            rows, points = round_rows(run)
        except UserError:
            continue
        words = f"Last recorded round, seed {seed_of(run)}"
        clients, nodes = number_of_nodes(run)
        charts = [("graph", graph_chart(rows, points), "who learns from whom")]
        if nodes == clients:
            chart = heatmap_chart(rows, points, largest_weight(run))
            charts.append(("matrix", chart, "weights of the senders, receivers in rows"))
        for name, chart, what in charts:
            drawn.append(Figure(f"{name}-{number + 1}", f"{method.full_name}: {what}", words, chart, "square", "who"))
    return drawn


def write_pictures(figures: Sequence[Figure], folder: Path, paper: Paper) -> list[Path]:
    """Write a picture and a CSV of each figure, named after it, and all titles and notes as `captions.txt`.

    Args:
        figures: figures of the page.
        folder: created if it does not exist.
        paper: format, width and font of the pictures.

    Returns:
        The files.

    Raises:
        UserError: a file cannot be written.
    """
    contents = {}
    for figure in figures:
        contents[f"{figure.name}.{paper.format}"] = figure_bytes(figure, paper, titled(figure))
        contents[f"{figure.name}.csv"] = as_csv(rows_of(figure.spec)).encode()
    captions = "".join(f"{figure.name}: {figure.title}. {figure.note}".rstrip() + "\n" for figure in figures)
    contents["captions.txt"] = captions.encode()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            write_atomically(folder / name, partial(_write, content=content))
    except OSError as error:
        raise UserError(f"{folder}: figures cannot be written ({error.strerror}); choose another folder") from error
    return [folder / name for name in contents]


def _write(file: BinaryIO, content: bytes) -> None:
    file.write(content)


def titled(figure: Figure) -> dict[str, Any]:
    """Return a chart's specification in the light theme, with title and note above the chart."""
    words = textwrap.wrap(figure.note, _CHARACTERS)
    title = {"text": textwrap.wrap(figure.title, _CHARACTERS - 20), "subtitle": words, "offset": 14}
    spec = {
        key: value for key, value in figure.spec.items() if key != "autosize"
    }  # a picture with a title is larger than its chart
    return {**spec, "title": title, "description": figure.spoken, "padding": 12}


def rows_of(spec: Any) -> list[dict[str, Any]]:
    """Return the rows of a chart for its CSV; a list in a row becomes numbered columns.

    They are those that the chart keeps for this, or else the longest list of rows in the chart or its layers.
    """
    if "rows" in spec.get("usermeta", {}):
        return [_without_lists(row) for row in spec["usermeta"]["rows"]]
    held = [part.get("data", {}).get("values", []) for part in [spec, *spec.get("layer", [])]]
    rows: list[dict[str, Any]] = max([*held, *spec.get("datasets", {}).values()], key=len)
    return [_without_lists(row) for row in rows]


def _without_lists(row: dict[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in row.items():
        flat |= {f"{name} {at}": inner for at, inner in enumerate(value)} if isinstance(value, list) else {name: value}
    return flat


def as_csv(rows: Sequence[dict[str, Any]]) -> str:
    """Write rows as CSV; None becomes an empty cell."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
