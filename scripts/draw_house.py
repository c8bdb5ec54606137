"""Draw which rooms of the package import which, as docs/images/house.svg.

A room is a folder or a file at the top of the package. Rows import columns: a dot for each pair, larger for more
imports, those for types included. All dots lie right of the diagonal, because imports only go down the list.

    python scripts/draw_house.py
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path
from xml.sax.saxutils import escape

PACKAGE = Path(__file__).parents[1] / "dfl_lightning"
PICTURE = PACKAGE.parent / "docs" / "images" / "house.svg"
ORDER = [
    *("conformance", "bench", "cli", "module", "evaluation", "build", "build_checks", "trainer"),
    *("trainer_evaluations", "trainer_callbacks", "trainer_options", "loop", "protocol", "terminal", "runs"),
    *("checkpoints", "callbacks", "objectives", "models", "round", "engines", "bank", "distributed", "data"),
    *("metrics", "tasks", "topology"),
    *("functional", "links", "utils"),
]
"""Rooms from the top to the ground; a room may import those below it, as tests/test_rooms.py sees to."""

ROW, LEFT, TOP, STEP = 26, 480, 120, 26
"""Height of a row, where the dots begin, and how far they are apart, in pixels."""

SIZES = ((20, "20 or more", 8.0), (5, "5 to 19", 5.5), (1, "1 to 4", 3.5))
"""Least number of imports of a dot, what it says, and its radius: three sizes, so that the picture changes seldom."""


@functools.cache
def imports(package: Path = PACKAGE) -> dict[tuple[str, str], list[str]]:
    """Find the imports between rooms: by (importing, imported), sentences `FILE imports MODULE`."""
    found: dict[tuple[str, str], list[str]] = {}
    for path in sorted(package.rglob("*.py")):
        file = path.relative_to(package)
        room = file.parts[0].removesuffix(".py")
        for node in _statements(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom):
                plain = node.module == "dfl_lightning"
                modules = [f"{node.module}.{a.name}" for a in node.names] if plain else [node.module or ""]
            else:
                modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for module in modules:
                first, _, rest = module.partition(".")
                to = rest.partition(".")[0]
                if first == package.name and to and "__init__" not in (room, to) and to != room:
                    found.setdefault((room, to), []).append(f"{file} imports {module}")
    return found


def _statements(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield all statements of a module, without searching through their expressions."""
    left: list[ast.AST] = [tree]
    while left:
        node = left.pop()
        yield node
        for block in ("body", "handlers", "cases", "orelse", "finalbody"):
            left += getattr(node, block, ())


def what(package: Path, room: str) -> str:
    """Read the first line of a room's documentation."""
    path = package / room / "__init__.py" if (package / room).is_dir() else package / f"{room}.py"
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return text.partition("\n")[0].rstrip(".")


def lines_of(package: Path, room: str) -> int:
    """Count the lines of Python in a room."""
    files = (package / room).rglob("*.py") if (package / room).is_dir() else [package / f"{room}.py"]
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files)


def picture(package: Path = PACKAGE) -> str:
    """Draw the picture, as SVG."""
    arrows, order = imports(package), ORDER
    width, height = LEFT + STEP * len(order) + 60, TOP + ROW * len(order) + 20
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="system-ui, sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        '<text x="20" y="28" font-size="15" font-weight="600" fill="#1a1a1a">'
        "Rooms of the package, from the top to the ground</text>",
        '<text x="20" y="48" fill="#444444">A dot: the row imports the column. Larger: more imports.</text>',
    ]
    for place, room in enumerate(order):
        x, y = LEFT + STEP * place + STEP // 2, TOP + ROW * place + ROW // 2
        parts += [
            f'<rect x="10" y="{y - ROW // 2}" width="{width - 60}" height="{ROW}" fill="#f3f5f7"/>'
            if place % 2
            else "",
            f'<text x="{x}" y="{TOP - 8}" transform="rotate(-45 {x} {TOP - 8})" fill="#1a1a1a">{room}</text>',
            f'<text x="20" y="{y + 4}" font-weight="600" fill="#1a1a1a">{room}</text>',
            f'<text x="115" y="{y + 4}" fill="#444444">{escape(_short(what(package, room)))}</text>',
            f'<rect x="{x - 5}" y="{y - 5}" width="10" height="10" fill="#9aa5b1"/>',
        ]
    for (start, to), sentences in sorted(arrows.items()):
        count, radius = next(size for least, *size in SIZES if len(sentences) >= least)
        x, y = LEFT + STEP * order.index(to) + STEP // 2, TOP + ROW * order.index(start) + ROW // 2
        colour = "#0b6e99" if order.index(to) > order.index(start) else "#c0392b"
        parts.append(
            f'<circle cx="{x}" cy="{y}" r="{radius}" fill="{colour}">'
            f"<title>{start} imports {to}: {count}</title></circle>"
        )
    return "\n".join([*filter(None, parts), "</svg>", ""])


def _short(text: str, most: int = 58) -> str:
    return text if len(text) <= most else text[: text.rindex(" ", 0, most)].rstrip(",:;") + " …"


def main() -> None:
    """Write the picture, and say how the house stands."""
    PICTURE.write_text(picture(), encoding="utf-8")
    arrows = imports()
    print(
        f"{PICTURE.relative_to(PACKAGE.parent)}: {len(arrows)} pairs of rooms, {sum(map(len, arrows.values()))} imports"
    )


if __name__ == "__main__":
    main()
