"""Figures for papers: their format, their width on paper, and their font."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from dfl_lightning.bench.report.page.sections import Figure
from dfl_lightning.bench.report.rendering import FORMATS, rendered
from dfl_lightning.utils.errors import UserError, nearest

UNITS = {"in": 72.0, "cm": 72 / 2.54, "mm": 7.2 / 2.54, "pt": 72 / 72.27}
"""Points of a PDF (72 to the inch) in a unit of length; `pt` is the point of TeX, the unit of `\\the\\columnwidth`."""

TYPE_SIZE = 8.0
"""Type size of names and numbers on paper, in points, as of captions in most papers."""

NARROW = 420
"""Width of a chart in pixels below which names of methods are shorter, as on a phone."""

_ON_SCREEN = 12.0
"""Type size of names and numbers in a chart, in pixels."""
_DENSITY = 300
"""Pixels of a PNG in an inch on paper."""
_LEAST, _MOST = 1.5, 20.0
"""Least and largest width of a figure, in inches."""


@dataclass(frozen=True)
class Paper:
    """The look of figures for a paper.

    Attributes:
        format: one of `FORMATS`.
        points: width of a figure in points, 72 to the inch; None: as on the page, with its title.
        font: font family of all words; None: that of the page.
    """

    format: str
    points: float | None = None
    font: str | None = None


def read_paper(format: str, width: str | None, font: str | None) -> Paper:
    """Parse the options `--figures`, `--width` and `--font`.

    Args:
        format: one of `FORMATS`.
        width: a number and a unit, such as `3.3in`.
        font: font family that is installed.

    Raises:
        UserError: an unknown format or unit, a width that is too small or too large, or a font that is not installed.
    """
    if format not in FORMATS:
        raise UserError(f"--figures {format}: it is one of {', '.join(FORMATS)}{nearest(format, FORMATS)}")
    if font is not None and not is_installed(font):
        raise UserError(
            f"--font {font}: there is no such font on this machine; `fc-list : family` lists those that are installed"
        )
    return Paper(format, None if width is None else _points(width), font)


def _points(width: str) -> float:
    """Convert a width such as `3.3in` to points, 72 to the inch."""
    match = re.fullmatch(r"\s*(\d+\.?\d*|\.\d+)\s*([a-z]+)\s*", width)
    if match is None or match[2] not in UNITS:
        raise UserError(f"--width {width}: give a number with its unit, {', '.join(UNITS)}, for example 3.3in")
    points = float(match[1]) * UNITS[match[2]]
    if not _LEAST <= points / 72 <= _MOST:
        raise UserError(f"--width {width}: a figure is {_LEAST:g} to {_MOST:g} inches wide")
    return points


def is_installed(font: str) -> bool:
    """Return True if a font is installed.

    A missing font is replaced by the next one in the list. Therefore a picture of a text is compared with two pictures
    in such a replacement: if both are equal, the font is missing.
    """
    text = {"mark": "text", "data": {"values": [{}]}, "encoding": {"text": {"value": "Qgw4%&"}}}
    replacements = ("monospace", "serif")
    return any(
        rendered({**text, "config": {"font": f"{_quoted(font)}, {replacement}"}})
        != rendered({**text, "config": {"font": replacement}})
        for replacement in replacements
    )


def figure_bytes(figure: Figure, paper: Paper, titled: dict[str, Any]) -> bytes:
    """Draw a figure and return the content of its file.

    Args:
        figure: figure of the page.
        paper: format, width and font.
        titled: specification of the chart with its title, which is drawn if `paper` has no width.
    """
    if paper.points is None:
        return rendered(_with_font(titled, paper.font), paper.format)
    spec = _with_font(fitted(figure.spec, paper.points), paper.font)
    return rendered(spec, paper.format, paper.points / spec["width"], _DENSITY)


def fitted(spec: dict[str, Any], points: float) -> dict[str, Any]:
    """Change the size of a chart so that its type has `TYPE_SIZE` on paper; names are shorter if it is narrow.

    Args:
        spec: specification of Vega-Lite.
        points: width of the figure on paper, 72 to the inch.
    """
    width = points * _ON_SCREEN / TYPE_SIZE
    square = spec.get("width") == spec.get("height")
    height = width if square else spec["height"]
    size = {"width": width, "height": height}
    resized = {**spec, **size, "padding": 4, "autosize": {"type": "fit", "contains": "padding"}}
    if width < NARROW and "layer" in resized:
        resized["layer"] = [_with_short_names(layer) for layer in resized["layer"]]
    return resized


def _with_short_names(layer: dict[str, Any]) -> dict[str, Any]:
    text = layer.get("encoding", {}).get("text", {})
    if text.get("field") != "label":
        return layer
    return {**layer, "encoding": {**layer["encoding"], "text": {**text, "field": "brief"}}}


def _with_font(spec: dict[str, Any], font: str | None) -> dict[str, Any]:
    if font is None:
        return spec
    return {**spec, "config": {**spec["config"], "font": f"{_quoted(font)}, serif"}}


def _quoted(font: str) -> str:
    return f'"{font}"' if " " in font else font
