"""Drawing of charts into picture files, by vl-convert, without a browser."""

from __future__ import annotations

import re
from typing import Any

FORMATS = ("pdf", "svg", "png")
"""File formats of pictures."""

DENSITY = 144
"""Default number of pixels of a PNG in an inch: two for each point."""

_SIZE = re.compile(r'width="([\d.]+)" height="([\d.]+)"')


def rendered(spec: dict[str, Any], format: str = "png", points: float = 1.0, density: int = DENSITY) -> bytes:
    """Draw a chart and return the content of a picture file.

    Args:
        spec: specification of Vega-Lite.
        format: one of `FORMATS`.
        points: size on paper of one pixel of the chart, in points (72 to the inch).
        density: pixels of a PNG in an inch; the other formats ignore it.
    """
    import vl_convert

    if format == "png":
        return bytes(vl_convert.vegalite_to_png(spec, scale=points, ppi=density))
    svg: str = vl_convert.vegalite_to_svg(spec)
    if format == "pdf":  # without a unit, vl-convert reads the numbers as points
        return bytes(vl_convert.svg_to_pdf(_sized(svg, points, "")))
    return _sized(svg, points, "pt").encode()


def _sized(svg: str, points: float, unit: str) -> str:
    """Change the size of a picture; its content is scaled with it, because its `viewBox` stays.

    Examples:
        >>> _sized('<svg width="300" height="150" viewBox="0 0 300 150">', 0.5, "pt")
        '<svg width="150pt" height="75pt" viewBox="0 0 300 150">'
    """
    return _SIZE.sub(
        lambda size: f'width="{_times(size[1], points)}{unit}" height="{_times(size[2], points)}{unit}"', svg, 1
    )


def _times(pixels: str, points: float) -> str:
    return f"{float(pixels) * points:.6g}"
