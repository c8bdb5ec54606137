"""Measure how much rounding alone moves the score of a run: the same run from first models that differ by rounding.

    python scripts/rounding_spread.py --runs 10 --config afind
    python scripts/rounding_spread.py --runs 10 --config studies/NAME/cells/CELL/run/TIME/config.yaml

Every number of the first models is multiplied by 1 + 1e-7 z, z normal with another seed in each run: about the last
digit of float32. Split, batches and all other draws stay as they are. All further arguments are those of dfl-fit. A
single difference that is at most as large as this spread says nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
import tempfile
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from dfl_lightning.cli.command import run

RELATIVE = 1e-7
"""Standard deviation of the change, relative to each number; float32 has a precision of 6e-8."""


class RoundedStart(Callback):
    """Callback that changes the first models of all clients alike, in their last digits.

    Args:
        draw: seed of the change; 0: none.
    """

    def __init__(self, draw: int = 0) -> None:
        self.draw = draw

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Change the rows before the first round; row sets that equal the models change with them."""
        bank = cast(Any, pl_module).bank
        if not self.draw or bank.boundary.round:
            return
        models = bank.boundary.rows["models"]
        z = torch.randn(models.shape[1], generator=torch.Generator().manual_seed(self.draw), dtype=torch.float64)
        factor = (1 + RELATIVE * z).to(models.device)
        changed = (models * factor).to(models.dtype)
        rows = {name: changed.clone() if torch.equal(of, models) else of for name, of in bank.boundary.rows.items()}
        bank.boundary = bank.boundary._replace(rows=rows)


def scores(words: list[str], runs: int, column: str) -> list[float]:
    """Return the last value of a column of metrics.csv in each run, in percent; the first run is not changed.

    Args:
        words: arguments of dfl-fit.
        runs: number of changed runs.
        column: name of the column, whose values are shares.
    """
    found = []
    for draw in range(runs + 1):
        with tempfile.TemporaryDirectory() as folder:
            callback = [f"--trainer.callbacks+={RoundedStart.__module__}.RoundedStart"]
            more = [*callback, f"--trainer.callbacks.draw={draw}", f"--trainer.default_root_dir={folder}"]
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                ended_badly = run("fit", [*words, *more, "--trainer.enable_progress_bar=false"])
            if ended_badly:
                sys.exit(f"dfl-fit {' '.join(words)} did not end well: {printed.getvalue()}")
            (file,) = Path(folder).rglob("metrics.csv")
            found.append(100 * float(pd.read_csv(file)[column].dropna().iloc[-1]))
    return found


def main() -> None:
    """Print the score of each run, their mean, standard deviation and range."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10, help="number of changed runs; default 10")
    parser.add_argument("--column", default="test_acc", help="a share in metrics.csv; default test_acc")
    own, words = parser.parse_known_args()
    unchanged, *changed = scores(words, own.runs, own.column)
    print(f"unchanged: {unchanged:.2f} %")
    print(f"changed: {' '.join(f'{score:.2f}' for score in changed)}")
    print(f"mean {np.mean(changed):.2f}, standard deviation {np.std(changed, ddof=1):.2f}, range {np.ptp(changed):.2f}")


if __name__ == "__main__":
    from rounding_spread import main as imported  # dfl-fit must find the callback's class by the name of this file.

    imported()
