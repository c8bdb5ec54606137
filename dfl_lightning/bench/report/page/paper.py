"""Figures for papers: a format, the width on paper, and a font."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from dfl_lightning.bench.report.page.sections import Figure
from dfl_lightning.bench.report.rendering import FORMATS, rendered
from dfl_lightning.utils.errors import UserError, nearest

UNITS = {"in": 72.0, "cm": 72 / 2.54, "mm": 7.2 / 2.54, "pt": 72 / 72.27}
"""Points of a PDF, 72 to the inch, in a unit of length; `pt` is that of TeX, as `\\the\\columnwidth` says it."""

TYPE_SIZE = 8.0
"""Of names and numbers on paper, in points: that of captions in most papers."""

NARROW = 420
"""Pixels of a chart below which names of methods are shorter, as on a phone."""

_ON_SCREEN = 12.0
"""Pixels of the same type in a chart."""
_DENSITY = 300
"""Pixels of a PNG in an inch."""
_LEAST, _MOST = 1.5, 20.0
"""Inches: widths that can be a figure's."""


@dataclass(frozen=True)
class Paper:
    """How figures of a paper look.

    Attributes:
        format: one of `FORMATS`.
        points: width of a figure, 72 to the inch; None: as on the page, with its title.
        font: of all words; None: that of the page.
    """

    format: str
    points: float | None = None
    font: str | None = None


def read_paper(format: str, width: str | None, font: str | None) -> Paper:
    """What `--figures`, `--width` and `--font` say.

    Args:
        format: one of `FORMATS`.
        width: a number and a unit, such as `3.3in`.
        font: a family that is installed.

    Raises:
        UserError: an unknown format or unit, a width that no figure has, or a font that is not there.
    """
    if format not in FORMATS:
        raise UserError(f"--figures {format}: it is one of {', '.join(FORMATS)}{nearest(format, FORMATS)}")
    if font is not None and not is_installed(font):
        raise UserError(
            f"--font {font}: there is no such font on this machine; `fc-list : family` names those there are"
        )
    return Paper(format, None if width is None else _points(width), font)


def _points(width: str) -> float:
    found = re.fullmatch(r"\s*(\d+\.?\d*|\.\d+)\s*([a-z]+)\s*", width)
    if found is None or found[2] not in UNITS:
        raise UserError(f"--width {width}: give a number with its unit, {', '.join(UNITS)}, for example 3.3in")
    points = float(found[1]) * UNITS[found[2]]
    if not _LEAST <= points / 72 <= _MOST:
        raise UserError(f"--width {width}: a figure is {_LEAST:g} to {_MOST:g} inches wide")
    return points


def is_installed(font: str) -> bool:
    """Whether words in a font look unlike those in two others, which stand in for one that is not there."""
    text = {"mark": "text", "data": {"values": [{}]}, "encoding": {"text": {"value": "Qgw4%&"}}}
    others = ("monospace", "serif")
    return any(
        rendered({**text, "config": {"font": f"{_quoted(font)}, {other}"}})
        != rendered({**text, "config": {"font": other}})
        for other in others
    )


def figure_bytes(figure: Figure, paper: Paper, titled: dict[str, Any]) -> bytes:
    """A figure as a file's content.

    Args:
        figure: of the page.
        paper: how it looks.
        titled: its specification with its title, for a figure without a width.
    """
    if paper.points is None:
        return rendered(_with_font(titled, paper.font), paper.format)
    spec = _with_font(fitted(figure.spec, paper.points), paper.font)
    return rendered(spec, paper.format, paper.points / spec["width"], _DENSITY)


def fitted(spec: dict[str, Any], points: float) -> dict[str, Any]:
    """A chart as wide as a figure whose type has `TYPE_SIZE`, with shorter names where it is narrow.

    Args:
        spec: of Vega-Lite.
        points: width of the figure, 72 to the inch.
    """
    width = points * _ON_SCREEN / TYPE_SIZE
    square = spec.get("width") == spec.get("height")
    height = width if square else spec["height"]
    found = {**spec, "width": width, "height": height, "padding": 4, "autosize": {"type": "fit", "contains": "padding"}}
    if width < NARROW and "layer" in found:
        found["layer"] = [_brief(layer) for layer in found["layer"]]
    return found


def _brief(layer: dict[str, Any]) -> dict[str, Any]:
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
