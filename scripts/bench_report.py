"""Times of making a report, the size of its page, the time until a browser is idle, and times of a step of its slider.

    python scripts/bench_report.py                                           # 6 runs, 100 rounds, 100 clients
    python scripts/bench_report.py --methods 1 --links 10 --only-page        # 10 neighbours of each client
    python scripts/bench_report.py --methods 30 --seeds 3 --rounds 300       # a large study

The runs are made up and written by the library's own writers into a folder that is removed: 5 links and 5 probed
models a client and round, drawn anew in each, four ground-truth clusters, similarities of all pairs. Nothing is
trained. Each report is made by `dfl-report` in a process of its own, so that its start is counted. A step is timed in
Chromium, from the move of the slider until the next frame has been painted; that needs playwright and a Chromium on
the path.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from dfl_lightning.runs.by_round.entries import Comparisons, Entries, stacked
from dfl_lightning.runs.tables import COLUMNS, as_csv, as_text
from dfl_lightning.utils.storage.files import write_npz

STEPS = 40
"""Steps of the slider that are timed."""

NOT_TIMED = "not timed (no Chromium or no playwright)"

STEP = """async (step) => {
  await new Promise((done) => requestAnimationFrame(() => setTimeout(done, 0)));
  const begun = performance.now();
  await window.report.move(step);
  await new Promise((done) => requestAnimationFrame(() => {
    const { port1, port2 } = new MessageChannel();
    port1.onmessage = done;
    port2.postMessage(0);
  }));
  return performance.now() - begun;
}"""


def main(argv: Sequence[str] | None = None) -> int:
    """Make the runs and the report; returns the exit code."""
    parser = argparse.ArgumentParser(description="How long a report and its slider take.")
    parser.add_argument("--methods", type=int, default=6, help="default 6")
    parser.add_argument("--seeds", type=int, default=1, help="runs of each method; default 1")
    parser.add_argument("--rounds", type=int, default=100, help="default 100")
    parser.add_argument("--clients", type=int, default=100, help="default 100")
    parser.add_argument("--links", type=int, default=5, help="of a client in a round, and as many probes; default 5")
    parser.add_argument("--only-page", action="store_true", help="no pictures")
    parser.add_argument("--out", metavar="FILE", help="keep the page")
    words = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        runs = [
            f"method {method}={write_run(folder / f'{method}-{seed}', method, seed, words)}"
            for method in range(words.methods)
            for seed in range(words.seeds)
        ]
        file = Path(words.out) if words.out else folder / "page.html"
        page = timed([*runs, "--out", str(file)])
        size = file.stat().st_size / 1e6
        what = f"{len(runs)} runs, {words.rounds} rounds, {words.clients} clients, {words.links} links of each"
        print(f"{what}: page {size:.2f} MB in {page}", flush=True)
        if not words.only_page:
            both = timed([*runs, "--out", str(file), "--figures", "png", "--figures-out", str(folder / "pictures")])
            print(f"with {len(list((folder / 'pictures').glob('*.png')))} pictures {both}", flush=True)
        print(f"opened: {opened(file)}", flush=True)
        for name, with_table in (("graph and matrix", False), ("and with the table of the round", True)):
            print(f"a step of the slider, {name}: {step_of_slider(file, with_table)}", flush=True)
    print(f"load while this ran: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    return 0


@contextmanager
def opened_tab(page: Path) -> Iterator[tuple[Any, Any]]:
    """Open the page in a browser until it is usable; yield it and a counting session, or None without a browser."""
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None or find_spec("playwright") is None:
        yield None, None
        return
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        tab = browser.new_page(viewport={"width": 1440, "height": 900})
        session = tab.context.new_cdp_session(tab)
        session.send("Performance.enable")  # its numbers are since then
        tab.goto(page.resolve().as_uri())
        while not tab.evaluate("Boolean(window.report && window.report.ready)"):
            tab.wait_for_timeout(100)
        yield tab, session
        browser.close()


def opened(page: Path) -> str:
    """Measure the page until it is usable: seconds of the main thread, elements, heap, and first paint."""
    with opened_tab(page) as (tab, session):
        if tab is None:
            return NOT_TIMED
        found = {entry["name"]: entry["value"] for entry in session.send("Performance.getMetrics")["metrics"]}
        painted = tab.evaluate("performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? NaN")
        busy, heap = found["TaskDuration"], found["JSHeapUsedSize"] / 1e6
        nodes = tab.evaluate("document.querySelectorAll('*').length")
    return f"main thread busy for {busy:.2f} s, {nodes:,} elements, heap {heap:.0f} MB, first paint {painted:.0f} ms"


def step_of_slider(page: Path, with_table: bool) -> str:
    """Measure the median and least milliseconds of a step of the slider until it is painted."""
    with opened_tab(page) as (tab, _):
        if tab is None:
            return NOT_TIMED
        tab.evaluate("document.getElementById('who').scrollIntoView()")
        if with_table:
            tab.click("#links summary")
        steps = int(tab.evaluate("Number(document.getElementById('round').max) + 1"))
        times = [float(tab.evaluate(STEP, at % steps)) for at in range(STEPS + 5)][5:]
    return f"median {np.median(times):.0f} ms, least {min(times):.0f} ms"


def timed(words: Sequence[str]) -> str:
    """Time `dfl-report` in a process of its own: seconds, and CPU seconds, which depend less on other processes."""
    began, spent = time.perf_counter(), spent_by_children()
    code = "import sys; from dfl_lightning.bench.report.command import main; sys.exit(main())"
    subprocess.run([sys.executable, "-c", code, *words], check=True, stdout=subprocess.DEVNULL)
    return f"{time.perf_counter() - began:.1f} s ({spent_by_children() - spent:.1f} s of a core)"


def spent_by_children() -> float:
    """Return the CPU seconds of all ended child processes."""
    times = os.times()
    return times.children_user + times.children_system


def write_run(folder: Path, method: int, seed: int, words: argparse.Namespace) -> Path:
    """Write a run folder with everything that the page shows."""
    rounds, clients, links = words.rounds, words.clients, words.links
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
        order = np.stack([row[row != i] for i, row in enumerate(order)])[:, : 2 * links]
        own = np.arange(clients)[:, None]
        sender = np.concatenate([own, order], axis=1).ravel()
        chosen = np.tile([False] + [True] * links + [False] * links, clients)
        looked = np.tile([False] * (1 + links) + [True] * links, clients)
        graphs.add(
            r,
            receiver=np.repeat(np.arange(clients, dtype=np.int32), 1 + 2 * links),
            sender=sender.astype(np.int32),
            weight=np.where(looked, 0, 1 / (1 + links)).astype(np.float32),
            selected=chosen,
            probed=looked,
        )
        comparisons.add(r, 1, rng.random((clients, clients)), np.full(clients, 0.5))
    extra = ["threshold", "neighbour_precision", "neighbour_recall"]
    (folder / "metrics.csv").write_text(as_csv(rows, [*COLUMNS, *extra]), encoding="utf-8")
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
