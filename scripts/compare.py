"""Run a config's variants over seeds and print their accuracies as a Markdown table.

    python scripts/compare.py afind --seeds 0 1 2
    python scripts/compare.py fdms --seeds 0 1 2 3 4
    python scripts/compare.py panm_grad --seeds 0 1 2
    python scripts/compare.py dpfl --seeds 0 1 2

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

from dfl_lightning.cli import run

UNIFORM = "--aggregation Uniform"
TRAINED = "--model.finetune_epochs 5"  # judged after local training, as DPFL's models are
VARIANTS = {
    "afind": {
        "Local": f"--selection Gossip --selection.k 0 --threshold null {UNIFORM}",
        "Gossip(5)": f"--selection Gossip --selection.k 5 --threshold null {UNIFORM}",
        "Fixed(5)": f"--selection Gossip --selection.k 5 --selection.redraw false --threshold null {UNIFORM}",
        "All, Boltzmann": "--selection Gossip --selection.k all --threshold null",
        "Oracle": f"--selection Gossip --selection.k all --selection.within cluster --threshold null {UNIFORM}",
        "AFIND, fixed number (5)": f"--threshold null {UNIFORM}",
        "AFIND + threshold": UNIFORM,
        "AFIND+": "",
        "AFIND+ by the letter": "--config afind_literal",
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
        "PANM by the letter": "--config panm_literal",
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", choices=sorted(VARIANTS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", default="runs/compare")
    parser.add_argument("--more", default="", help="further options for every run, in one string")
    words = parser.parse_args()
    measures = {
        "acc_best_round": "best round",
        "acc_last": "last round",
        "acc_best_val": "best on validation",
        "global_mean_over_rounds": "global model, mean over rounds",
    }
    print(f"| {words.config} | {' | '.join(measures.values())} | models received | seconds |")
    print("|---|---|---|---|---|---|---|", flush=True)
    for name, options in VARIANTS[words.config].items():
        summaries = [one(words.config, options, words.more, seed, Path(words.out)) for seed in words.seeds]
        cells = [spread([s["test_accuracy"].get(m) for s in summaries]) for m in measures]
        models = statistics.mean(s["received_per_client"]["models"] for s in summaries)
        seconds = statistics.median(s["wall"] for s in summaries)
        print(f"| {name} | {' | '.join(cells)} | {models:.0f} | {seconds:.0f} |", flush=True)


def one(config: str, options: str, more: str, seed: int, out: Path) -> dict:
    """One run's summary.json."""
    argv = f"--config {config} {options} {more} --seed_everything {seed} --trainer.default_root_dir {out}".split()
    before = set(out.rglob("summary.json"))
    printed, started = io.StringIO(), time.perf_counter()
    with contextlib.redirect_stdout(printed):
        code = run("fit", argv)
    if code:
        sys.exit(f"dfl-fit {' '.join(argv)} ended with {code}")
    (file,) = set(out.rglob("summary.json")) - before
    return {**json.loads(file.read_text()), "wall": time.perf_counter() - started}


def spread(values: list[float | None]) -> str:
    """Mean and standard deviation over seeds, in percent."""
    known = [100 * v for v in values if v is not None]
    if not known:
        return "–"
    deviation = statistics.stdev(known) if len(known) > 1 else 0.0
    return f"{statistics.mean(known):.2f} ± {deviation:.2f}"


if __name__ == "__main__":
    main()
