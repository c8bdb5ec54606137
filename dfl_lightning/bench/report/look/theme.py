"""Colours and styles of charts: a light and a dark theme. Charts name styles instead of colours.

The first six colours of a palette differ by at least 16 (CIEDE2000), also for people with protanopia, deuteranopia or
tritanopia; all twelve differ by at least 16 for others, and by 9.5 for them. Their contrast to the background is at
least 4.5 : 1, so that labels may have these colours. The last colour, a grey, is that of training alone; it differs by
10.5 or more from the others.
"""

from __future__ import annotations

from typing import Any

LIGHT = {
    "category": [
        *("#185cfe", "#b45f0e", "#10755a", "#8c126f", "#0a0b14", "#523e15"),
        *("#dd00aa", "#aa1133", "#0000bb", "#114444", "#440000", "#330044"),
        "#6f777f",
    ],
    "ramp": ["#e6eefb", "#a9c6f5", "#5f96ea", "#1f5fd0", "#0b3380"],
    "blues": ["#4f8ae6", "#1f5fd0", "#0b3380"],
    "gain": ["#8a3800", "#e39a5b", "#f3f1ec", "#7fa8ee", "#0b3380"],
    "card": "#ffffff",
    "ink": "#16202e",
    "soft": "#56606f",
    "line": "#dfe4ea",
    "kept": "#7b8696",
    "new": "#0b57d0",
    "dropped": "#b3261e",
    "probed": "#6d7685",
    "substitute": "#7a3fa8",
    "stands_in": "#7a3fa8",
    "absent": "#c9d0d9",
    "same": "#0b3380",
    "other": "#a04200",
}
DARK = {
    "category": [
        *("#4282f4", "#f64c0a", "#7ed69d", "#efa2d5", "#feffff", "#f5e418"),
        *("#ee33bb", "#bb8877", "#ff9900", "#009944", "#ddff99", "#ccbbbb"),
        "#878787",
    ],
    "ramp": ["#1d2a40", "#27508f", "#3f7fd6", "#86b3f7", "#dce9ff"],
    "blues": ["#3f7fd6", "#6aa1f2", "#9cc2ff"],
    "gain": ["#ffb877", "#a05a1f", "#343b47", "#3a73c4", "#a9cbff"],
    "card": "#171b22",
    "ink": "#e8ebf0",
    "soft": "#a8b1be",
    "line": "#2b323d",
    "kept": "#8994a5",
    "new": "#7db0ff",
    "dropped": "#ff8a7a",
    "probed": "#8f99a8",
    "substitute": "#cfa2f5",
    "stands_in": "#cfa2f5",
    "absent": "#434c5a",
    "same": "#a9cbff",
    "other": "#ffb877",
}

DASHES: list[list[float]] = [[1, 0], [6, 3], [2, 2], [9, 3, 2, 3], [5, 2, 1, 2], [14, 4], [9, 2, 2, 2, 2, 2]]
"""Dashes of lines, the same in both themes. Seven dashes and twelve colours distinguish 84 methods."""

DOTTED: list[float] = [1.5, 2.5]
"""Dashes of training alone, whose grey is the last colour of the palette."""

SHAPES = [
    "circle",
    "square",
    "M0,-1.35L1.35,0.95L-1.35,0.95Z",
    "M0,-1.35L1.35,0L0,1.35L-1.35,0Z",
    "M0,-1.25L1.2,-0.35L0.75,1.05L-0.75,1.05L-1.2,-0.35Z",
    "M-1.25,0L-0.62,-1.05L0.62,-1.05L1.25,0L0.62,1.05L-0.62,1.05Z",
    "M0,1.35L1.35,-0.95L-1.35,-0.95Z",
    "M-1.3,-1.3L0,-0.8L1.3,-1.3L0.8,0L1.3,1.3L0,0.8L-1.3,1.3L-0.8,0Z",
]
"""Shapes of nodes by cluster, in addition to colours."""

FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", sans-serif'


def config(theme: dict[str, Any]) -> dict[str, Any]:
    """Convert a theme to Vega-Lite's `config`."""
    ink, soft, line, card = theme["ink"], theme["soft"], theme["line"], theme["card"]
    return {
        "background": card,
        "font": FONT,
        "view": {"stroke": None},
        "axis": {
            **{"labelColor": soft, "titleColor": soft, "gridColor": line, "domainColor": line, "tickColor": line},
            **{"labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": "normal", "titlePadding": 8},
            **{"domain": False, "ticks": False, "labelPadding": 6},
        },
        "axisY": {"labelLimit": 150},
        "axisX": {"grid": False, "domain": True, "ticks": True, "tickSize": 4, "labelSeparation": 8},
        "legend": {
            **{"labelColor": soft, "titleColor": soft, "titleFontWeight": "normal", "labelFontSize": 12},
            "titleLimit": 400,
        },
        "title": {"color": ink, "subtitleColor": soft, "anchor": "start", "fontSize": 15, "subtitleFontSize": 12},
        "range": {
            "category": theme["category"],
            "ramp": theme["ramp"],
            "heatmap": theme["ramp"],
            "ordinal": theme["blues"],
        },
        "style": {
            "note": {"color": soft, "fill": soft, "fontSize": 12},
            "rim": {"color": card, "fill": card, "stroke": card, "strokeWidth": 3.5, "strokeJoin": "round"},
            "strong": {"color": ink, "fill": ink, "fontSize": 12, "fontWeight": 600},
            "zero": {"color": ink},
            "frame": {"stroke": card, "strokeWidth": 1.5},
            "id": {"color": card, "fill": card, "fontSize": 10.5, "fontWeight": 700},
            "falsified": {"stroke": ink, "strokeWidth": 1.5, "fill": "transparent"},
            "dotted": {"color": theme["soft"], "strokeDash": [2, 2]},
            "wash": {"color": theme["soft"], "opacity": 0.12},
            "absent": {"color": theme["kept"]},
            "same": {"color": theme["same"], "fill": theme["same"]},
            "other": {"color": theme["other"], "fill": theme["other"]},
            "bad": {"color": theme["dropped"], "fill": theme["dropped"]},
            "plateau": {"color": theme["kept"], "fill": theme["kept"]},
            "gone": {"color": soft, "fill": soft, "opacity": 0.55},
        },
    }


def variables() -> str:
    """Write the colours of both themes as CSS variables, which a page uses."""

    def rules(theme: dict[str, Any]) -> str:
        colours = [f"--m{number}:{colour}" for number, colour in enumerate(theme["category"])]
        colours += [f"--{name}:{colour}" for name, colour in theme.items() if isinstance(colour, str)]
        colours.append(f"--ramp:linear-gradient(90deg,{','.join(theme['ramp'])})")
        return ";".join(colours)

    dark = f":root{{{rules(DARK)}}}"
    return (
        f":root{{{rules(LIGHT)};color-scheme:light}}"
        f"@media screen and (prefers-color-scheme:dark){{{dark[:-1]};color-scheme:dark}}}}"
        f":root[data-theme=light]{{{rules(LIGHT)};color-scheme:light}}"
        f"@media screen{{:root[data-theme=dark]{{{rules(DARK)};color-scheme:dark}}}}\n"
    )
