"""A chart's specification as a PNG, without what a picture does not show."""

from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree

from dfl_lightning.report.charts.base import TILES

_SVG = "http://www.w3.org/2000/svg"
_ENDS = ("transform", "x2", "y2")
_ROWS = ("values", "datasets")
"""Where a chart has its rows, which may be many."""

_TOGETHER = 250
"""Lines of a path, whose colours are not laid on twice where they cross: in a path of all they would run together."""

_FEW = 100
"""Of fewer lines or tiles each stays a mark of its own."""

_START = re.compile(r"translate\(([^,]+),([^)]+)\)")
_TILES = re.compile(rf'(<g class="mark-rect role-mark {TILES}_marks"[^>]*>)((?:<path [^>]*/>)*)')
_TILE = re.compile(r'<path d="([^"]*)"([^>]*)/>')


def as_png(spec: dict[str, Any], scale: float) -> bytes:
    """Draw a chart.

    Args:
        spec: of Vega-Lite; it is left as it is.
        scale: pixels for one of the chart.
    """
    import vl_convert

    svg: str = vl_convert.vegalite_to_svg(still(spec))
    image: bytes = vl_convert.svg_to_png(lighter(svg), scale=scale)
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


def lighter(svg: str) -> str:
    """The same picture with fewer parts, or parts that take less time to draw.

    Args:
        svg: as Vega writes it.
    """
    svg = svg.replace(' stroke-dasharray="1,0"', "")  # a solid line, which would be drawn dash by dash
    svg = _TILES.sub(_tiles_by_colour, svg)
    many_lines, clipped = svg.count("<line ") >= _FEW, "clip-path=" in svg
    if not (many_lines or clipped):
        return svg
    ElementTree.register_namespace("", _SVG)
    root = ElementTree.fromstring(svg)
    if clipped:
        _clip_together(root)
    if many_lines:
        _join_lines(root)
    return ElementTree.tostring(root, encoding="unicode")


def _tiles_by_colour(found: re.Match[str]) -> str:
    """Tiles of a colour as one path, without soft edges, of which an area without gaps shows seams."""
    by_look: dict[str, list[str]] = {}
    for shape, look in _TILE.findall(found[2]):
        by_look.setdefault(look, []).append(shape)
    if sum(map(len, by_look.values())) < _FEW:
        return found[0]
    paths = "".join(f'<path d="{"".join(shapes)}"{look}/>' for look, shapes in by_look.items())
    return f'{found[1][:-1]} shape-rendering="crispEdges">{paths}'


def _clip_together(root: ElementTree.Element) -> None:
    """Clip the lines of a layer together: each one that is clipped takes a canvas of its own."""
    areas = {area.get("id"): ElementTree.tostring(area[0]) for area in root.iter(f"{{{_SVG}}}clipPath")}
    for layer in root.iter(f"{{{_SVG}}}g"):
        if "role-scope" not in layer.get("class", "").split():
            continue
        marks = [part for part in layer.iter() if part.get("clip-path")]
        places = {part.get("transform", "translate(0,0)") for part in layer.iter(f"{{{_SVG}}}g")}
        used = {areas[mark.get("clip-path", "")[len("url(#") : -1]] for mark in marks}
        if len(marks) > 1 and len(used) == 1 and places == {"translate(0,0)"}:
            layer.set("clip-path", marks[0].get("clip-path", ""))
            for mark in marks:
                del mark.attrib["clip-path"]


def _join_lines(root: ElementTree.Element) -> None:
    """Lines of a mark that look the same become few paths: a line of its own takes a millisecond to draw.

    A line starts at its `translate` and ends at `x2` and `y2` from there. Widths are rounded to a tenth of a pixel.
    """
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
