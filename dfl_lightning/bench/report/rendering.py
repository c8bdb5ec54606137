"""A chart's specification as the bytes of a picture, drawn by vl-convert without a browser."""

from __future__ import annotations

import re
from typing import Any

FORMATS = ("pdf", "svg", "png")
"""Of pictures."""

DENSITY = 144
"""Pixels of a PNG in an inch, unless another number is asked for: two for a point."""

_SIZE = re.compile(r'width="([\d.]+)" height="([\d.]+)"')


def rendered(spec: dict[str, Any], format: str = "png", points: float = 1.0, density: int = DENSITY) -> bytes:
    """Draw a chart.

    Args:
        spec: of Vega-Lite.
        format: one of `FORMATS`.
        points: size on paper of one pixel of the chart, 72 to the inch.
        density: pixels of a PNG in an inch; the other formats have none.
    """
    import vl_convert

    if format == "png":
        return bytes(vl_convert.vegalite_to_png(spec, scale=points, ppi=density))
    svg: str = vl_convert.vegalite_to_svg(spec)
    if format == "pdf":  # vl-convert takes a pixel for a point
        return bytes(vl_convert.svg_to_pdf(_sized(svg, points, "")))
    return _sized(svg, points, "pt").encode()


def _sized(svg: str, points: float, unit: str) -> str:
    """A picture with another size; what is in it is scaled alike, for its `viewBox` stays.

    Examples:
        >>> _sized('<svg width="300" height="150" viewBox="0 0 300 150">', 0.5, "pt")
        '<svg width="150pt" height="75pt" viewBox="0 0 300 150">'
    """
    return _SIZE.sub(
        lambda size: f'width="{_part(size[1], points)}{unit}" height="{_part(size[2], points)}{unit}"', svg, 1
    )


def _part(pixels: str, points: float) -> str:
    return f"{float(pixels) * points:.6g}"
