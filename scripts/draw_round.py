"""Draw a communication round as one client sees it: docs/images/round.svg, the figure of docs/how_it_works.md.

python scripts/draw_round.py
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from xml.sax.saxutils import escape

PICTURE = Path(__file__).resolve().parents[1] / "docs" / "images" / "round.svg"

WIDTH, HEIGHT, TOP = 160, 258, 64
"""Of a panel, and where panels begin, in pixels."""

INK, GREY, BLUE, ORANGE = "#1a1a1a", "#6b7280", "#0b6e99", "#b45309"


@dataclass(frozen=True)
class Panel:
    """A step of a round.

    Args:
        title: what happens.
        key: the key of a config that decides it.
        hooks: who does it, in the order of the round.
        writes: the fields or row sets that are written.
        links: a label for each neighbour that client i has a link from.
        colour: of the links.
        down: neighbours that have dropped out.
        stands_in: neighbours (for whom, who).
    """

    title: str
    key: str
    hooks: tuple[str, ...]
    writes: str
    links: dict[str, str]
    colour: str = GREY
    down: str = ""
    stands_in: tuple[str, str] | None = field(default=None)


PANELS = [
    Panel("who can send to i", "topology", (), "reachable", dict.fromkeys("abcde", "")),
    Panel("d drops out", "dropout", ("on_dropout",), "active", dict.fromkeys("abcde", ""), down="d"),
    Panel(
        "all train and send",
        "selection, objective, outgoing",
        ("on_propose", "local training", "on_outgoing"),
        "candidates, trained, sent",
        dict.fromkeys("abce", ""),
        BLUE,
        "d",
    ),
    Panel(
        "how similar they are",
        "selection",
        ("on_trained", "on_compare"),
        "similarity, scores",
        {"a": "1.4", "b": "1.2", "c": ".3", "d": "1.1", "e": ".2"},
        BLUE,
        "d",
    ),
    Panel(
        "whom i would mix",
        "threshold, selection",
        ("on_threshold", "on_select"),
        "threshold, selected",
        dict.fromkeys("abd", ""),
        BLUE,
        "d",
    ),
    Panel(
        "b stands in for d",
        "substitution",
        ("on_substitute",),
        "substitute, votes",
        {"a": "1", "b": "2"},
        ORANGE,
        "d",
        ("d", "b"),
    ),
    Panel(
        "row i of W, the mix",
        "aggregation",
        ("on_weigh", "on_mix"),
        "weights, models",
        {"a": ".25", "b": ".5"},
        ORANGE,
        "d",
    ),
]
"""The example: five neighbours of a client i; a, b and d are similar to it, and d has dropped out."""


def text(
    x: float, y: float, words: str, fill: str = INK, size: int = 12, weight: int = 400, anchor: str = "middle"
) -> str:
    """Draw a line of text, centred at x."""
    return (
        f'<text x="{x:.0f}" y="{y:.0f}" fill="{fill}" font-size="{size}" font-weight="{weight}" '
        f'text-anchor="{anchor}">{escape(words)}</text>'
    )


def place(panel: int, neighbour: str) -> tuple[float, float]:
    """Return a neighbour's position, on a half circle above client i."""
    angle = math.pi * (1.04 - 0.27 * "abcde".index(neighbour))
    x, y = centre(panel)
    return x + 56 * math.cos(angle), y - 56 * math.sin(angle)


def centre(panel: int) -> tuple[float, float]:
    """Return the position of client i."""
    return WIDTH * panel + WIDTH / 2, TOP + 104


def node(x: float, y: float, name: str, fill: str, down: bool) -> list[str]:
    """Draw a client: a disc with its name, hollow if it has dropped out."""
    disc = f'<circle cx="{x:.0f}" cy="{y:.0f}" r="11" fill="{"#ffffff" if down else fill}" stroke="{fill}"'
    disc += ' stroke-dasharray="3 2"/>' if down else "/>"
    return [disc, text(x, y + 4, name, GREY if down else "#ffffff", 12, 600)]


def panel_of(number: int, panel: Panel) -> list[str]:
    """Draw one step."""
    x, y = centre(number)
    parts = [text(x, TOP - 6, f"{number + 1}. {panel.title}", weight=600)]
    for neighbour, label in panel.links.items():
        a, b = place(number, neighbour)
        down = neighbour in panel.down
        parts.append(
            f'<line x1="{a:.1f}" y1="{b:.1f}" x2="{x + (a - x) * 0.3:.1f}" y2="{y + (b - y) * 0.3:.1f}" '
            f'stroke="{panel.colour}" stroke-width="{1.4 if panel.colour == GREY else 2.2}" '
            f'marker-end="url(#{panel.colour[1:]})"{" stroke-dasharray=" + chr(34) + "4 3" + chr(34) if down else ""}/>'
        )
        if label:
            offset = -13 if a < x - 9 else 13 if a > x + 9 else 0
            above = neighbour in "bcd"
            parts.append(text(a + offset * above, b - 13 if above else b + 24, label, panel.colour, 11))
    for neighbour in "abcde":
        parts += node(*place(number, neighbour), neighbour, INK, neighbour in panel.down)
    if panel.stands_in:
        (a, b), (c, d) = (place(number, name) for name in reversed(panel.stands_in))
        parts.append(
            f'<path d="M {a + 5:.0f} {b - 11:.0f} Q {(a + c) / 2:.0f} {b - 72:.0f} {c:.0f} {d - 13:.0f}" fill="none" '
            f'stroke="{ORANGE}" stroke-width="1.6" stroke-dasharray="2 2" marker-end="url(#{ORANGE[1:]})"/>'
        )
    parts += node(x, y, "i", BLUE, False)
    if number == len(PANELS) - 1:
        parts.append(text(x + 24, y + 5, ".25", ORANGE, 11, anchor="start"))
    below = TOP + 138
    for hook in panel.hooks:
        parts.append(text(x, below, hook, BLUE if hook.startswith("on_") else INK, 11, 600))
        below += 15
    low = TOP + 196
    parts.append(text(x, low, panel.key, GREY, 10))
    parts.append(text(x, low + 15, f"→ {panel.writes}", INK, 10))
    return parts


def picture() -> str:
    """Draw the picture, as SVG."""
    width, height = WIDTH * len(PANELS), TOP + HEIGHT - 40
    heads = [
        f'<marker id="{colour[1:]}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="5" markerHeight="5" orient="auto">'
        f'<path d="M0 0 L8 4 L0 8 z" fill="{colour}"/></marker>'
        for colour in (GREY, BLUE, ORANGE)
    ]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="system-ui, sans-serif">',
        "<title>A communication round as client i sees it</title>",
        "<defs>" + "".join(heads) + "</defs>",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        text(16, 26, "A communication round as client i sees it", size=15, weight=600, anchor="start"),
        text(width - 16, 26, "blue: hooks · grey: keys of a config · →: what is written", GREY, 11, anchor="end"),
    ]
    for number, panel in enumerate(PANELS):
        if number:
            x = WIDTH * number
            parts.append(f'<line x1="{x}" y1="{TOP - 18}" x2="{x}" y2="{height - 14}" stroke="#e3e6ea"/>')
        parts += panel_of(number, panel)
    return "\n".join([*parts, "</svg>", ""])


def main() -> None:
    """Write the picture."""
    PICTURE.write_text(picture(), encoding="utf-8")


if __name__ == "__main__":
    main()
