"""Seconds until `dfl-report FOLDER --watch` shows ten thousand runs, and what following them costs.

    python scripts/bench_watch.py                     # 10,000 runs: 500 methods with 20 seeds
    python scripts/bench_watch.py --runs 1000 --turns 3

The run folders are made up in a temporary folder, which is removed. Each has a summary, a config of a hundred lines and
a metrics.csv of 60 rounds, which is what the table reads; the configs differ in four settings, one of them a random
number. Opened is the time from the start of the command, in a process of its own, until Chromium has all rows in the
table; reloaded is that of a reload. Following is a look of the server at the folders: of unchanged ones, and after one
run has ended. The browser needs playwright and a Chromium on the path.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.tables import Table

from dfl_lightning.bench.report.watch.collection import Collection
from dfl_lightning.cli.resolve import resolve
from dfl_lightning.utils.storage.yaml_files import dump_yaml

ROUNDS, SEEDS, SELECTED = 60, 20, 5


def main(argv: Sequence[str] | None = None) -> int:
    """Make the runs and measure; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10_000, metavar="N", help="(%(default)s)")
    parser.add_argument("--turns", type=int, default=5, metavar="N", help="of each measurement (%(default)s)")
    words = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        last = write_runs(folder, words.runs)
        table = Table(f"seconds for {words.runs:,} runs", ["", "median", "least"])
        for what, seconds in [*followed(folder, last, words.turns).items(), *opened(folder, words).items()]:
            table.rows.append([what, f"{statistics.median(seconds):.3f}", f"{min(seconds):.3f}"])
        print(table.markdown())
    print(f"load while this ran: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    return 0


def write_runs(folder: Path, number: int) -> Path:
    """Write run folders, and return the last one."""
    config = resolve(["--config", "afind"])
    draws = random.Random(0)
    lines = [f"{r},{1 / (r + 1)!r},{0.5 + r / 200!r},5,20,1000000,0.5" for r in range(ROUNDS)]
    metrics = "\n".join(["round,train_loss,test_acc,neighbours,active,bytes_received,seconds", *lines]) + "\n"
    for at in range(number):
        method, seed = divmod(at, SEEDS)
        run = folder / f"method-{method}" / f"seed-{seed}" / "run" / "2026-11-27_16-48-53"
        run.mkdir(parents=True)
        config["seed_everything"] = seed
        config["selection"]["init_args"]["nu"] = round(random.Random(method).random(), 6)
        config["selection"]["init_args"]["k"] = 1 + method % 10
        config["model"]["local_epochs"] = 1 + method % 5
        (run / "config.yaml").write_text(dump_yaml(config), encoding="utf-8")
        (run / "metrics.csv").write_text(metrics, encoding="utf-8")
        (run / "summary.json").write_text(json.dumps(summary(seed, draws.random())), encoding="utf-8")
    return run


def summary(seed: int, accuracy: float) -> dict[str, Any]:
    """Make the content of a summary.json, as long as those of real runs."""
    return {
        "status": "finished",
        "rounds": ROUNDS,
        "clients": 20,
        "task": {"name": "Classification", "score": "acc", "higher_is_better": True, "percent": True},
        "data": "Made up, 4 images a client",
        "policies": ["AFIND", "Boltzmann"],
        "engine": {"name": "stacked", "reason": "", "cohorts": [2] * 10, "processes": 1, "threads": 1},
        "test_accuracy": {"acc_last": accuracy, "mean": accuracy, "std": 0.01, "worst10": accuracy - 0.02},
        "received_per_client": {"models": 545.75, "probes": 245.75, "proxies": 0.0, "bytes": 6e7},
        "seconds": {"rounds": 30.0, "train": 20.0, "compare": 1.0, "mix": 2.0, "evaluate": 7.0},
        "seeds": {"run": seed, "split": seed},
        "versions": {"python": "3.11", "torch": "2.10", "lightning": "2.6"},
    }


def followed(folder: Path, last: Path, turns: int) -> dict[str, list[float]]:
    """Measure the first look at the folders, later ones at unchanged folders, and one after a run has ended."""
    seconds: dict[str, list[float]] = {"first look, without a browser": [], "unchanged": [], "a run has changed": []}
    time.sleep(2.1)  # folders that have just changed are looked at more closely
    for turn in range(turns):
        collection = Collection([folder])
        for name in seconds:
            if name == "a run has changed":
                (last / "summary.json").unlink()
                (last / "summary.json").write_text(json.dumps(summary(turn, turn / 10)), encoding="utf-8")
            began = time.perf_counter()
            collection.refresh(at_once=True)
            seconds[name].append(time.perf_counter() - began)
    return seconds


def opened(folder: Path, words: argparse.Namespace) -> dict[str, list[float]]:
    """Measure the command until a browser has all rows, and reloads; empty without a browser."""
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None or find_spec("playwright") is None:
        return {}
    from playwright.sync_api import sync_playwright

    seconds: dict[str, list[float]] = {"opened": [], "reloaded": [], "scrolled to the end": [], "sorted": []}
    code = "import sys; from dfl_lightning.bench.report.main import report; report()"
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        tab = browser.new_context(bypass_csp=True).new_page()  # Playwright's own waiting needs `eval`
        for _ in range(words.turns):
            began = time.perf_counter()
            server = subprocess.Popen(
                [sys.executable, "-c", code, str(folder), "--watch", "--port", "0"], stdout=subprocess.PIPE, text=True
            )
            try:
                assert server.stdout is not None
                tab.goto(server.stdout.readline().split()[3])
                shown = f"window.watched.ready && document.querySelector('[aria-rowcount=\"{words.runs + 1}\"]')"
                tab.wait_for_function(shown, polling=10)
                seconds["opened"].append(time.perf_counter() - began)
                tab.wait_for_timeout(8_000)  # while methods are named, which takes torch's import
                began = time.perf_counter()
                tab.reload()
                tab.wait_for_function(shown, polling=10)
                seconds["reloaded"].append(time.perf_counter() - began)
                for name, do in (
                    ("scrolled to the end", "document.querySelector('#grid').scrollTop = 1e9"),
                    ("sorted", "document.querySelector('[data-of=rounds] button').click()"),
                ):
                    seconds[name].append(float(tab.evaluate(UNTIL_PAINTED.replace("DO", do))) / 1000)
            finally:
                server.terminate()
                server.wait()
        browser.close()
    return seconds


UNTIL_PAINTED = """async () => {
  await new Promise((done) => requestAnimationFrame(() => setTimeout(done, 0)));
  const begun = performance.now();
  DO;
  await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 0))));
  return performance.now() - begun;
}"""


if __name__ == "__main__":
    sys.exit(main())
