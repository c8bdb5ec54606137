"""Train the base of the study `lora_small`: a small transformer on one half of the modules of four packages of Python.

    python scripts/train_base.py                    # writes base/client_0.safetensors, which the study reads
    dfl-study run lora_small

The base is a run with a single client that has training blocks of all four packages. Its texts are the first half of
the modules; the study's clients have modules of the second half. Minutes on one CPU core.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

from dfl_lightning.cli.command import run
from dfl_lightning.cli.exports.export_command import main as export

PACKAGES = ("networkx", "numpy", "sympy", "torchmetrics")
ALONE = (
    "--config text --data.half first --data.partition IID --data.num_clients 1 --topology complete "
    "--selection Gossip --selection.k 0 --threshold null --aggregation Uniform --model.batch_size 32"
)


def main(argv: Sequence[str] | None = None) -> int:
    """Train the base and export it; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="base", help="folder of the file (default: %(default)s)")
    parser.add_argument("--blocks", type=int, default=30_000, help="training blocks (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=8, help="passes over the blocks (default: %(default)s)")
    words = parser.parse_args(argv)
    sizes = ["--data.samples_per_client", str(words.blocks), "--trainer.max_rounds", str(words.rounds)]
    with tempfile.TemporaryDirectory() as folder:
        place = ["--trainer.default_root_dir", folder]
        code = run("fit", [*ALONE.split(), "--data.packages", json.dumps(PACKAGES), *sizes, *place])
        found = [file.parent for file in Path(folder).rglob("summary.json")]
        return code or export([str(found[0]), "--out", words.out])


if __name__ == "__main__":
    raise SystemExit(main())
