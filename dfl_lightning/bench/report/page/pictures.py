"""The charts of the page as files of their own, and their rows as CSV."""

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
"""Of a title's line."""


def linked_figures(methods: Sequence[Method]) -> list[Figure]:
    """The graph and the matrix of the last recorded round, of the first run of each method with charts of its own.

    Under a server, which alone receives, there is no matrix.
    """
    found = []
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
            found.append(Figure(f"{name}-{number + 1}", f"{method.full_name}: {what}", words, chart, "square", "who"))
    return found


def write_pictures(figures: Sequence[Figure], folder: Path, paper: Paper) -> list[Path]:
    """Write a picture and a CSV of each figure, named after it, and their titles as `captions.txt`.

    Args:
        figures: of the page.
        folder: where they go.
        paper: how they look.

    Returns:
        The files.

    Raises:
        UserError: the folder cannot be written.
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
    """The chart's specification, in the light theme, with its words above it."""
    words = textwrap.wrap(figure.note, _CHARACTERS)
    title = {"text": textwrap.wrap(figure.title, _CHARACTERS - 20), "subtitle": words, "offset": 14}
    spec = {key: value for key, value in figure.spec.items() if key != "autosize"}  # it may be larger than its plot
    return {**spec, "title": title, "description": figure.spoken, "padding": 12}


def rows_of(spec: Any) -> list[dict[str, Any]]:
    """The longest list of rows that a chart or one of its layers holds; a list in a row becomes numbered columns."""
    held = [part.get("data", {}).get("values", []) for part in [spec, *spec.get("layer", [])]]
    rows: list[dict[str, Any]] = max([*held, *spec.get("datasets", {}).values()], key=len)
    return [_without_lists(row) for row in rows]


def _without_lists(row: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in row.items():
        found |= {f"{name} {at}": inner for at, inner in enumerate(value)} if isinstance(value, list) else {name: value}
    return found


def as_csv(rows: Sequence[dict[str, Any]]) -> str:
    """Rows as text; nothing for what is not known."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
