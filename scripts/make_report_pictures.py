"""Make the README's two pictures of `dfl-report` from real runs: learning curves, and a round's links."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import vl_convert

from dfl_lightning import read_run
from dfl_lightning.report import collaboration_graph, learning_curves
from dfl_lightning.report.methods import find_methods
from dfl_lightning.report.reading import Run

IMAGES = Path(__file__).parent.parent / "docs" / "images"
METHODS = ("--config afind", "--config gossip", "--config gossip --selection.k 0")
SEEDS = (0, 1, 2)
LINKS_OF, ROUND = "--config dpfl", 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, help="where the runs are kept, and taken from if they are there")
    with tempfile.TemporaryDirectory() as temporary:
        folder = parser.parse_args().runs or Path(temporary)
        runs = [trained(folder, f"{method} --seed_everything {seed}") for method in METHODS for seed in SEEDS]
        links = collaboration_graph(trained(folder, LINKS_OF), ROUND)
        save(learning_curves(find_methods(runs)), "report_curves.png", width=480, height=320)
        save(links, "report_graph.png", width=420, height=420)
    print(f"wrote {IMAGES}/report_curves.png and report_graph.png")


def trained(folder: Path, words: str) -> Run:
    """The run of a command, which is trained where it is not there yet."""
    place = folder / words.replace("--", "").replace(" ", "_")
    if not list(place.glob("runs/*/*/summary.json")):
        place.mkdir(parents=True, exist_ok=True)
        call = "from dfl_lightning.cli.main import fit; fit()"
        subprocess.run([sys.executable, "-c", call, *words.split()], cwd=place, check=True)
    (summary,) = place.glob("runs/*/*/summary.json")
    return read_run(summary.parent)


def save(chart: Any, name: str, **size: int) -> None:
    spec = chart.properties(**size, padding=10).to_dict()
    (IMAGES / name).write_bytes(vl_convert.vegalite_to_png(spec, scale=1.5))


if __name__ == "__main__":
    main()
