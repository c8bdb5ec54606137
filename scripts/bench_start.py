"""Seconds of the processor of a command from its first import to its end, for one checkout or for two by turns.

    python scripts/bench_start.py                            # this checkout
    python scripts/bench_start.py OTHER . --turns 5          # two of them, and the ratio

A checkout is a folder that has `dfl_lightning`. Ratios are medians of the turns' ratios, since other programs slow
down both sides of a turn. Needs a system with `resource`, so not Windows.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.tables import Table

COMMANDS = {
    "--help": ["--help"],
    "afind, 1 round": ["--config", "afind", "--trainer.max_rounds=1", "--trainer.accelerator=cpu"],
}
START = "import sys; sys.path.insert(0, {!r}); from dfl_lightning.cli.main import fit; fit()"


def main(argv: Sequence[str] | None = None) -> int:
    """Measure; returns the exit code."""
    words = make_parser().parse_args(argv)
    taken = {(checkout, name): list[float]() for name in COMMANDS for checkout in words.checkouts}
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(words.turns):
            for name, arguments in COMMANDS.items():
                for checkout in words.checkouts[:: 1 if turn % 2 == 0 else -1]:
                    taken[checkout, name].append(seconds(checkout, arguments, folder))
    print(table(words.checkouts, taken).markdown())
    return 0


def seconds(checkout: str, arguments: Sequence[str], folder: str) -> float:
    """Measure the CPU seconds of one command with one thread."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, "-c", START.format(str(Path(checkout).absolute())), *arguments],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        check=True,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def table(checkouts: Sequence[str], taken: dict[tuple[str, str], list[float]]) -> Table:
    """Make a table of medians, and the ratio of the first checkout's seconds to those of the last.

    Examples:
        >>> taken = {("a", "--help"): [0.2, 0.2, 0.4], ("b", "--help"): [0.1, 0.1, 0.1]}
        >>> print(table(["a", "b"], taken).markdown())
        ### CPU s of dfl-fit
        <BLANKLINE>
        | command | a    | b    | a / b |
        |---------|------|------|-------|
        | --help  | 0.20 | 0.10 | 2.00  |
    """
    first, last = checkouts[0], checkouts[-1]
    two = [f"{first} / {last}"] if len(checkouts) > 1 else []
    made = Table("CPU s of dfl-fit", ["command", *checkouts, *two])
    for name in dict.fromkeys(name for _, name in taken):
        row = [name, *(f"{statistics.median(taken[checkout, name]):.2f}" for checkout in checkouts)]
        ratios = [before / after for before, after in zip(taken[first, name], taken[last, name], strict=True)]
        made.rows.append([*row, *([f"{statistics.median(ratios):.2f}"] if two else [])])
    return made


def make_parser() -> argparse.ArgumentParser:
    """Make the parser of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkouts", nargs="*", metavar="CHECKOUT", default=["."], help="one or two; default: this one")
    parser.add_argument("--turns", type=int, default=3, metavar="N", help="of each command (%(default)s)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
