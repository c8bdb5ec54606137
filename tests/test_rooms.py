"""Imports go down the list of rooms, those for types included, and the picture of it is of today."""

import ast
import dataclasses
import functools
import re
import runpy
from collections import Counter
from pathlib import Path

import networkx as nx
from sentences import definitions

import dfl_lightning
from dfl_lightning.cli.keys import KEYS
from dfl_lightning.round.callback import RoundCallback
from dfl_lightning.round.record import Round

PACKAGE = Path(dfl_lightning.__file__).parent
DRAWING = runpy.run_path(str(PACKAGE.parent / "scripts" / "draw_house.py"))
ROUND = runpy.run_path(str(PACKAGE.parent / "scripts" / "draw_round.py"))
ORDER = DRAWING["ORDER"]
imports = DRAWING["imports"]


@functools.cache
def parsed(path):
    """Parse a file once for all tests of the rooms."""
    return ast.parse(path.read_text(encoding="utf-8"))


def test_every_room_is_in_the_list():
    here = {path.name.removesuffix(".py") for path in PACKAGE.iterdir() if path.suffix == ".py" or path.is_dir()}
    assert here - {"__init__", "__pycache__", "_version", "py.typed"} == set(ORDER)


def test_the_page_lists_the_rooms_in_their_order():
    page = (PACKAGE.parent / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = "\n".join(line.split("|")[1] for line in page.splitlines() if line.startswith("| `"))
    assert re.findall(r"`(\w+)(?:/|\.py)`", table) == ORDER


def test_imports_go_down():
    height = {room: -place for place, room in enumerate(ORDER)}
    up = {pair: lines for pair, lines in imports().items() if height[pair[1]] > height[pair[0]]}
    assert set(up) == {("cli", "bench")}  # --report and --live, see below


def test_the_picture_is_of_todays_imports():
    drawn = (PACKAGE.parent / "docs" / "images" / "house.svg").read_text(encoding="utf-8")
    assert drawn == DRAWING["picture"](), "draw it again: python scripts/draw_house.py"
    assert {tuple(pair) for pair in re.findall(r"<title>(\w+) imports (\w+): ", drawn)} == set(imports())


def test_the_figure_of_a_round_matches_the_code():
    drawn = (PACKAGE.parent / "docs" / "images" / "round.svg").read_text(encoding="utf-8")
    assert drawn == ROUND["picture"](), "draw it again: python scripts/draw_round.py"
    hooks = [name for name in vars(RoundCallback) if name.startswith("on_")]
    own = [name for panel in ROUND["PANELS"] for name in panel.hooks if name.startswith("on_")]
    assert own == sorted(own, key=hooks.index)
    assert set(hooks) - set(own) == {
        *("on_start", "on_clock", "on_mixed", "on_round_end", "on_engine_progress", "on_boundary")
    }
    writes = {name for panel in ROUND["PANELS"] for name in panel.writes.split(", ")}
    assert writes - {"trained", "sent", "models"} <= {field.name for field in dataclasses.fields(Round)}
    assert {key for panel in ROUND["PANELS"] for key in panel.key.split(", ")} <= set(KEYS)


def test_a_run_does_not_need_the_bench():
    """Only the two options that make pages import it, when they are used, and the package's lazy public names."""
    lazy = {"cli/command.py": 3, "__init__.py": 2}
    for path in PACKAGE.rglob("*.py"):
        file = path.relative_to(PACKAGE)
        if file.parts[0] == "bench":
            continue
        tree = parsed(path)
        named = [
            node for node in definitions(tree) if isinstance(node, ast.ImportFrom) and "bench" in (node.module or "")
        ]
        assert len(named) == lazy.get(file.as_posix(), 0), file
        assert not [node for node in tree.body if node in named], f"{file} imports the bench when it is loaded"


def test_no_room_has_more_than_fourteen_files():
    counts = Counter(path.parent for path in PACKAGE.rglob("*.py"))
    assert {folder: count for folder, count in counts.items() if count > 14} == {}


def test_pure_mathematics_imports_nothing_of_ours_but_links_and_utils():
    assert {to for (room, to) in imports() if room == "functional"} <= {"links", "utils"}


def test_files_do_not_import_each_other_in_circles():
    """Imports for types included."""
    files = {".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts): path for path in PACKAGE.rglob("*.py")}
    graph = nx.DiGraph()
    for name, path in files.items():
        for node in definitions(parsed(path)):
            if isinstance(node, ast.ImportFrom) and node.module:
                targets = [f"{node.module}.{alias.name}" for alias in node.names] + [node.module]
                graph.add_edges_from((name, target) for target in targets if target in files and target != name)
    circles = [sorted(members) for members in nx.strongly_connected_components(graph) if len(members) > 1]
    assert circles == []


def test_families_of_callbacks_do_not_import_each_other():
    families = {path.name for path in (PACKAGE / "callbacks").iterdir() if path.is_dir()}
    for path in (PACKAGE / "callbacks").rglob("*.py"):
        own = path.relative_to(PACKAGE / "callbacks").parts[0]
        for node in definitions(parsed(path)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("dfl_lightning.callbacks."):
                family = node.module.split(".")[2]
                assert own == "__init__.py" or family not in families or family == own, f"{path.name}: {node.module}"
