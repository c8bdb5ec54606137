"""A chart's specification as a PNG, without what a picture does not show."""

from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree

_SVG = "http://www.w3.org/2000/svg"
_ENDS = ("transform", "x2", "y2")
_ROWS = ("values", "datasets")
"""Where a chart has its rows, which may be many."""

_TOGETHER = 100
"""Lines of a path, whose colours are not laid on twice where they cross: in a path of all they would run together."""

_FILLED = re.compile(r'<path (?![^>]* stroke=")[^>]* fill-opacity="([^"]+)"[^>]* opacity="([^"]+)"')
"""The beginning of a path without a line around it."""

_START = re.compile(r"translate\(([^,]+),([^)]+)\)")


def as_png(spec: dict[str, Any], scale: float) -> bytes:
    """Draw a chart.

    Args:
        spec: of Vega-Lite; it is left as it is.
        scale: pixels for one of the chart.
    """
    import vl_convert

    svg: str = vl_convert.vegalite_to_svg(still(spec))
    image: bytes = vl_convert.svg_to_png(joined(svg), scale=scale)
    return image


def still(spec: dict[str, Any]) -> dict[str, Any]:
    """A chart without what answers to a mouse or is read aloud: tooltips, the invisible points that have them, labels.

    Args:
        spec: of Vega-Lite.
    """
    found: dict[str, Any] = _still(spec)
    found["config"] = {**found.get("config", {}), "aria": False}
    return found


def _still(value: Any) -> Any:
    if isinstance(value, list):
        return [_still(inner) for inner in value if not _is_unseen(inner)]
    if isinstance(value, dict):
        return {key: inner if key in _ROWS else _still(inner) for key, inner in value.items() if key != "tooltip"}
    return value


def _is_unseen(layer: Any) -> bool:
    mark = layer.get("mark") if isinstance(layer, dict) else None
    return isinstance(mark, dict) and mark.get("opacity") == 0


def _without_layer(found: re.Match[str]) -> str:
    """With one opacity in the place of two: one of the whole mark takes a canvas of its own."""
    both = f' fill-opacity="{float(found[1]) * float(found[2]):.4g}"'
    return found[0].replace(f' fill-opacity="{found[1]}"', both).replace(f' opacity="{found[2]}"', "")


def joined(svg: str) -> str:
    """The same picture with fewer lines: those of a mark that look the same become one path for each hundred.

    A line of its own takes a millisecond to draw, and a graph may have 1500. Widths are rounded to a tenth of a pixel.
    A picture with fewer than a hundred lines stays as it is.

    Args:
        svg: as Vega writes it: a line starts at its `translate` and ends at `x2` and `y2` from there.
    """
    svg = svg.replace(' stroke-dasharray="1,0"', "")  # a solid line, which would be drawn dash by dash
    svg = _FILLED.sub(_without_layer, svg)
    if svg.count("<line ") < _TOGETHER:
        return svg
    ElementTree.register_namespace("", _SVG)
    root = ElementTree.fromstring(svg)
    for group in root.iter(f"{{{_SVG}}}g"):
        paths: dict[tuple[tuple[str, str], ...], list[str]] = {}
        for line in group.findall(f"{{{_SVG}}}line"):
            start = _START.fullmatch(line.get("transform", ""))
            if start is None:
                continue
            look = {name: value for name, value in line.items() if name not in _ENDS}
            if "stroke-width" in look:
                look["stroke-width"] = f"{float(look['stroke-width']):.1f}"
            step = f"M{start[1]},{start[2]}l{line.get('x2', '0')},{line.get('y2', '0')}"
            paths.setdefault(tuple(sorted(look.items())), []).append(step)
            group.remove(line)
        for look_of_path, steps in paths.items():
            for at in range(0, len(steps), _TOGETHER):
                drawn = {**dict(look_of_path), "d": "".join(steps[at : at + _TOGETHER])}
                ElementTree.SubElement(group, f"{{{_SVG}}}path", drawn)
    return ElementTree.tostring(root, encoding="unicode")
