"""How long a report takes to make, and how large its page is.

    python scripts/bench_report.py                                           # 6 runs, 100 rounds, 100 clients
    python scripts/bench_report.py --methods 30 --seeds 3 --rounds 300       # a large study

The runs are made up and written by the library's own writers into a folder that is removed: 5 links and 5 looked-at
models a client and round, four hidden clusters, similarities of all pairs. Nothing is trained. Each report is made by
`dfl-report` in a process of its own, so that its start is counted.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import yaml

from dfl_lightning.report.by_round import Comparisons, Entries, stacked
from dfl_lightning.report.tables import as_csv, as_text
from dfl_lightning.utils.files import write_npz

LINKS = 5
"""Links of a client in a round, and as many models that it only looks at."""


def main(argv: Sequence[str] | None = None) -> int:
    """Make the runs and the report; returns the exit code."""
    parser = argparse.ArgumentParser(description="How long a report takes to make, and how large its page is.")
    parser.add_argument("--methods", type=int, default=6, help="default 6")
    parser.add_argument("--seeds", type=int, default=1, help="runs of each method; default 1")
    parser.add_argument("--rounds", type=int, default=100, help="default 100")
    parser.add_argument("--clients", type=int, default=100, help="default 100")
    parser.add_argument("--to", metavar="FILE", help="keep the page")
    words = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        runs = [
            f"method {method}={write_run(folder / f'{method}-{seed}', method, seed, words.rounds, words.clients)}"
            for method in range(words.methods)
            for seed in range(words.seeds)
        ]
        file = Path(words.to) if words.to else folder / "page.html"
        page = timed([*runs, "--to", str(file)])
        both = timed([*runs, "--to", str(file), "--png", str(folder / "pictures")])
        pictures = len(list((folder / "pictures").glob("*.png")))
        what = f"{len(runs)} runs, {words.rounds} rounds, {words.clients} clients"
        size = file.stat().st_size / 1e6
    print(f"{what}: page {size:.2f} MB in {page}, with {pictures} pictures {both}")
    return 0


def timed(words: Sequence[str]) -> str:
    """Seconds of `dfl-report` in a process of its own, and processor seconds, which depend less on other processes."""
    began, spent = time.perf_counter(), spent_by_children()
    code = "import sys; from dfl_lightning.cli.report import main; sys.exit(main())"
    subprocess.run([sys.executable, "-c", code, *words], check=True, stdout=subprocess.DEVNULL)
    return f"{time.perf_counter() - began:.1f} s ({spent_by_children() - spent:.1f} s of a core)"


def spent_by_children() -> float:
    """Processor seconds of all processes that this one has started and that have ended."""
    times = os.times()
    return times.children_user + times.children_system


def write_run(folder: Path, method: int, seed: int, rounds: int, clients: int) -> Path:
    """A run folder with everything that the page shows."""
    rng = np.random.default_rng([method, seed])
    folder.mkdir(parents=True)
    clusters = np.arange(clients) % 4
    level = 0.6 + 0.02 * method + rng.normal(0, 0.05, clients)
    accuracies = {
        r: np.clip(level * (1 - 0.7 * np.exp(-r / 20)) + rng.normal(0, 0.01, clients), 0, 1) for r in range(rounds)
    }
    rows = []
    graphs, comparisons = Entries("graphs.npz", always=True), Comparisons()
    for r, accuracy in accuracies.items():
        numbers = {"test_acc": float(accuracy.mean()), "bytes_received": 1e6, "seconds": 0.5, "threshold": 0.5}
        numbers |= {"neighbour_precision": min(1.0, 0.25 + r / 50), "neighbour_recall": min(1.0, r / 50)}
        rows.append({"round": str(r), **{key: as_text(value) for key, value in numbers.items()}})
        order = rng.random((clients, clients)).argsort(1)
        order = np.stack([row[row != i] for i, row in enumerate(order)])[:, : 2 * LINKS]
        own = np.arange(clients)[:, None]
        sender = np.concatenate([own, order], axis=1).ravel()
        chosen = np.tile([False] + [True] * LINKS + [False] * LINKS, clients)
        looked = np.tile([False] * (1 + LINKS) + [True] * LINKS, clients)
        graphs.add(
            r,
            receiver=np.repeat(np.arange(clients, dtype=np.int32), 1 + 2 * LINKS),
            sender=sender.astype(np.int32),
            weight=np.where(looked, 0, 1 / (1 + LINKS)).astype(np.float32),
            selected=chosen,
            probed=looked,
        )
        comparisons.add(r, 1, rng.random((clients, clients)), np.full(clients, 0.5))
    extra = ["threshold", "neighbour_precision", "neighbour_recall"]
    (folder / "metrics.csv").write_text(as_csv(rows, extra), encoding="utf-8")
    write_npz(folder / "clients.npz", stacked({r: {"test_acc": accuracy} for r, accuracy in accuracies.items()}))
    graphs.write(folder, rounds)
    comparisons.write(folder, rounds)
    images = np.arange(10 * clients)
    offsets = np.arange(0, 10 * clients + 1, 10)
    split = {"test_indices": images, "test_offsets": offsets, "train_indices": images, "train_offsets": offsets}
    write_npz(folder / "split.npz", {**split, "clusters": clusters, "adversaries": np.zeros(0, dtype=bool)})
    config = {"seed_everything": seed, "selection": {"class_path": f"Method{method}"}}
    (folder / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    last = accuracies[rounds - 1]
    summary = {
        "status": "finished",
        "clients": clients,
        "data": "Made up",
        "seeds": {"run": seed},
        "test_accuracy": {"mean": float(last.mean()), "worst10": float(np.sort(last)[: -(-clients // 10)].mean())},
        "received_per_client": {"bytes": 1e6 * rounds},
        "seconds": {"rounds": 0.5 * rounds, "train": 0.4 * rounds},
        "versions": {"python": sys.version.partition(" ")[0]},
    }
    (folder / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    return folder


if __name__ == "__main__":
    sys.exit(main())
