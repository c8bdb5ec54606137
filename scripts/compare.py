"""Run a config's variants, or every method on one toy, over seeds and print what they reach as a Markdown table.

    python scripts/compare.py afind --seeds 0 1 2
    python scripts/compare.py fdms --seeds 0 1 2 3 4
    python scripts/compare.py panm_grad --seeds 0 1 2
    python scripts/compare.py dpfl --seeds 0 1 2
    python scripts/compare.py toy --seeds 0 1 2

Every row is a command line that anyone can run; the runs stay in `--out`.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from comparisons import toy
from comparisons.spread import spread

from dfl_lightning.cli.command import run

UNIFORM = "--aggregation Uniform"
ALL = "--selection Gossip --selection.k all --threshold null"
TRAINED = "--model.finetune_epochs 5"  # judged after local training, as DPFL's models are
VARIANTS = {
    "afind": {
        "Local": f"--selection Gossip --selection.k 0 --threshold null {UNIFORM}",
        "Gossip(5)": f"--selection Gossip --selection.k 5 --threshold null {UNIFORM}",
        "Fixed(5)": f"--selection Gossip --selection.k 5 --selection.redraw false --threshold null {UNIFORM}",
        "All, Boltzmann": ALL,
        "All, Boltzmann, T = 0.5": f"{ALL} --aggregation.temperature 0.5",
        "All, Boltzmann, T = 0.25": f"{ALL} --aggregation.temperature 0.25",
        "Oracle": f"--selection Gossip --selection.k all --selection.within cluster --threshold null {UNIFORM}",
        "AFIND, fixed number (5)": f"--threshold null {UNIFORM}",
        "AFIND + threshold": UNIFORM,
        "AFIND+": "",
        "AFIND+ as printed": "--config afind_literal",
    },
    "fdms": {
        "Full": "--dropout null",
        "Dropout": "--substitution null",
        "Stale": "--substitution Stale",
        "FDMS": "",
    },
    "panm_grad": {
        "Local": "--selection Gossip --selection.k 0",
        "Gossip(3)": "--selection Gossip --selection.k 3",
        "Fixed(3)": "--selection Gossip --selection.k 3 --selection.redraw false",
        "Oracle(3)": "--selection Gossip --selection.k 3 --selection.within cluster",
        "PANMGrad": "",
        "PANMLoss": "--config panm_loss",
        "PANM as printed": "--config panm_literal",
    },
    "dpfl": {
        "Local": f"--selection Gossip --selection.k 0 {TRAINED}",
        "Gossip(5)": f"--selection Gossip --selection.k 5 {TRAINED}",
        "Oracle": f"--selection Gossip --selection.k all --selection.within cluster {TRAINED}",
        "DPFL": "",
        "DPFL, no budget": "--selection.budget all",
        "DPFL, chosen every 5 rounds": "--selection.period 5",
        "DPFL, repeated BGGC": "--selection.repeat_bggc true",
    },
}


MEASURES = {
    "acc_best_round": "best round",
    "acc_last": "last round",
    "acc_best_val": "best on validation",
    "global_mean_over_rounds": "global model, mean over rounds",
}


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("config", choices=[*sorted(VARIANTS), "toy"], help="whose variants; or toy: every method")
    options.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    options.add_argument("--out", default="runs/compare")
    options.add_argument("--rows", nargs="+", default=[], help="of the table; default: all", metavar="NAME")
    options.add_argument("--more", default="", help="further options for every run, in one string")
    return options


def main() -> None:
    words = parser().parse_args()
    rows = commands(words.config)
    unknown = set(words.rows) - set(rows)
    if unknown:
        sys.exit(f"compare.py {words.config} has no row {', '.join(sorted(unknown))}; there are {', '.join(rows)}")
    describe = toy.cells if words.config == "toy" else cells
    chosen = {name: argv for name, argv in rows.items() if name in (words.rows or rows)}
    for number, (name, argv) in enumerate(chosen.items()):
        row = describe([one([*argv, *words.more.split()], seed, Path(words.out)) for seed in words.seeds])
        if not number:
            print(f"| {' | '.join([words.config, *row])} |\n|{'---|' * (1 + len(row))}")
        print(f"| {' | '.join([name, *row.values()])} |", flush=True)


def commands(comparison: str) -> dict[str, list[str]]:
    """Return the arguments of `dfl-fit` of each row."""
    if comparison == "toy":
        return {name: toy.command(name) for name in toy.METHODS}
    return {name: ["--config", comparison, *options.split()] for name, options in VARIANTS[comparison].items()}


def one(argv: list[str], seed: int, out: Path) -> dict[str, Any]:
    """Run one command; return the content of summary.json, the seconds and the folder."""
    argv = [*argv, "--seed_everything", str(seed), "--trainer.default_root_dir", str(out)]
    before = set(out.rglob("summary.json"))
    printed, started = io.StringIO(), time.perf_counter()
    with contextlib.redirect_stdout(printed):
        code = run("fit", argv)
    if code:
        sys.exit(f"dfl-fit {' '.join(argv)} ended with {code}")
    (file,) = set(out.rglob("summary.json")) - before
    return {**json.loads(file.read_text()), "wall": time.perf_counter() - started, "folder": file.parent}


def cells(summaries: list[dict[str, Any]]) -> dict[str, str]:
    """Format a row's cells by column, from the summaries of its seeds."""
    row = {title: spread([s["test_accuracy"].get(key) for s in summaries]) for key, title in MEASURES.items()}
    row["models received"] = f"{statistics.mean(s['received_per_client']['models'] for s in summaries):.0f}"
    row["seconds"] = f"{statistics.median(s['wall'] for s in summaries):.0f}"
    return row


if __name__ == "__main__":
    main()
