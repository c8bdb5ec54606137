"""Make README's pictures, and the sentence under them, from runs of today's code.

The terminal and the graph of its first command; learning curves of three methods over three seeds, what their page says
and how its top looks; the links of a round of DPFL. Takes minutes; the picture of the page needs playwright and a
Chromium on the path.
"""

from __future__ import annotations

import argparse
import io
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import Any

import vl_convert
from PIL import Image
from rich.console import Console

from dfl_lightning import read_run
from dfl_lightning.bench.report import collaboration_graph, learning_curves
from dfl_lightning.bench.report.methods import find_methods
from dfl_lightning.bench.report.page.sentences.verdict import sentences
from dfl_lightning.bench.report.writing import write_report
from dfl_lightning.runs.reading import Run

ROOT = Path(__file__).parent.parent
README, IMAGES = ROOT / "README.md", ROOT / "docs" / "images"
FIRST = "--config afind"
METHODS = (FIRST, "--config gossip", "--config gossip --selection.k 0")
SEEDS = (0, 1, 2)
LINKS_OF, ROUND = "--config dpfl", 4
COLUMNS = 100
"""Of the terminal in the picture."""

WIDTH, HEIGHT = 1160, 1180
"""Pixels of the top of the page."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, help="where the runs are kept, and taken from if they are there")
    with tempfile.TemporaryDirectory() as temporary:
        folder = parser.parse_args().runs or Path(temporary)
        places = [trained(folder, f"{method} --seed_everything {seed}") for method in METHODS for seed in SEEDS]
        runs = [run_in(place) for place in places]
        terminal((places[0] / "output").read_text(encoding="utf-8"))
        save(collaboration_graph(runs[0]), "collaboration_graph.png")
        save(collaboration_graph(run_in(trained(folder, LINKS_OF)), ROUND), "report_graph.png", width=420, height=420)
        methods = find_methods(runs)
        save(learning_curves(methods), "report_curves.png", width=480, height=320)
        page(write_report([run.path for run in runs], folder / "page.html"))
        said = textwrap.wrap(" ".join(sentences(methods)), 118)  # reads what the runs were tested on
    readme = README.read_text(encoding="utf-8")
    README.write_text(with_quotation(readme, said), encoding="utf-8")
    print(f"wrote {IMAGES} and {README}")


def trained(folder: Path, words: str) -> Path:
    """Run a command unless its folder exists; return the folder, whose file `output` has what it printed."""
    place = folder / words.replace("--", "").replace(" ", "_")
    if not (place / "output").is_file():
        place.mkdir(parents=True, exist_ok=True)
        call = "from dfl_lightning.cli.main import fit; fit()"
        command = [sys.executable, "-c", call, *words.split()]
        done = subprocess.run(command, cwd=place, stdout=subprocess.PIPE, text=True, check=True)
        (place / "output").write_text(done.stdout, encoding="utf-8")
    return place


def run_in(place: Path) -> Run:
    (summary,) = place.glob("runs/*/*/summary.json")
    return read_run(summary.parent)


def terminal(output: str) -> None:
    """Save the output of the first command as an SVG without external fonts."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO())
    console.print("$ dfl-fit --config configs/afind.yaml", highlight=False)
    console.print(f"{output}\n", end="", highlight=False)  # an empty line: rich cuts the feet off the last one
    text = console.export_svg(title="dfl-fit")
    (IMAGES / "terminal.svg").write_text(re.sub(r"\s*@font-face \{.*?\}", "", text, flags=re.DOTALL), encoding="utf-8")


def save(chart: Any, name: str, **size: int) -> None:
    spec = chart.properties(**size, padding=10).to_dict()
    save_small(vl_convert.vegalite_to_png(spec, scale=1.5), name)


def save_small(picture: bytes, name: str) -> None:
    """Save a PNG of 128 colours; these pictures have few colours, and become a third as large."""
    with Image.open(io.BytesIO(picture)) as image:
        image.convert("RGB").quantize(128).save(IMAGES / name, optimize=True)


def page(file: Path) -> None:
    """Save a picture of the top of a page in a browser."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        shown = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
        shown.goto(file.resolve().as_uri())
        while not shown.evaluate("Boolean(window.report && window.report.drawn)"):
            shown.wait_for_timeout(50)
        save_small(shown.screenshot(), "report_page.png")
        browser.close()


def with_quotation(readme: str, said: list[str]) -> str:
    """Replace README's only quotation by sentences of the page."""
    found = re.findall(r"(?m)(?:^> .*\n)+", readme)
    assert len(found) == 1, "README has one quotation"
    return readme.replace(found[0], "".join(f"> {line}\n" for line in said))


if __name__ == "__main__":
    main()
