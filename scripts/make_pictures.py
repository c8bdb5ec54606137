"""Make the README's pictures from a real run of its first command: the terminal, and the collaboration graph."""

from __future__ import annotations

import argparse
import io
import subprocess
import sys
import tempfile
from pathlib import Path

import vl_convert
from rich.console import Console

from dfl_lightning import read_run
from dfl_lightning.report import collaboration_graph

IMAGES = Path(__file__).parent.parent / "docs" / "images"
COMMAND = "dfl-fit --config configs/afind.yaml"


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    IMAGES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        call = "from dfl_lightning.cli.main import fit; fit()"
        words = [sys.executable, "-c", call, *COMMAND.split()[1:]]
        output = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=True).stdout
        (run,) = Path(folder).glob("runs/afind/*")
        graph = collaboration_graph(read_run(run)).properties(padding=10).to_dict()
        (IMAGES / "collaboration_graph.png").write_bytes(vl_convert.vegalite_to_png(graph, scale=1.5))
    width = max(map(len, output.splitlines())) + 2
    console = Console(record=True, width=width, file=io.StringIO())
    console.print(f"$ {COMMAND}", highlight=False)
    console.print(output, end="", highlight=False, soft_wrap=False)
    console.save_svg(str(IMAGES / "terminal.svg"), title="dfl-fit")
    print(f"wrote {IMAGES}/terminal.svg and collaboration_graph.png")


if __name__ == "__main__":
    main()
