"""Compare the memory that a run takes with what the library predicts.

    python scripts/bench_memory.py                                  # both settings; prints how long it will take
    python scripts/bench_memory.py --only resnet --clients 20 --out runs/benchmarks

Each setting runs in a fresh process: libraries are loaded and warmed up by a tiny run, then the federation is built and
runs two rounds. Measured is the growth of the resident set to its peak (VmHWM of /proc); predicted is what
`dfl_lightning.runs.memory_estimate.predicted_memory` says, in four parts: rows, data, work (a cohort in each
thread) and pairs (matrices over all pairs of clients, quadratic by nature). Needs Linux.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.tables import Table, machine, write_json

PROC = Path("/proc/self/status")
SCRIPTS = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Setting:
    """A federation; `seconds` is what it takes on two ordinary cores, more or less."""

    network: str
    clients: int
    samples: int
    batch_size: int
    rounds: int
    seconds: float


SETTINGS = {
    "lenet": Setting("LeNet", 1000, 50, 16, 2, 30),
    "resnet": Setting("ResNet18", 100, 16, 16, 2, 120),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Measure what was asked for; returns the exit code."""
    words = make_parser().parse_args(argv)
    if not PROC.is_file():
        print("bench_memory: there is no /proc here; run it on Linux", file=sys.stderr)
        return 2
    chosen = {name: resized(SETTINGS[name], words) for name in words.only}
    print(f"about {sum(20 + s.seconds for s in chosen.values()):.0f} s on two quiet cores", flush=True)
    columns = [
        "setting",
        "rows",
        "data",
        "work",
        "links",
        "predicted",
        "measured",
        "predicted/measured",
        "without pairs",
    ]
    table = Table("Memory of a run: MB", columns)
    for setting in chosen.values():
        obstacle = too_large(setting)
        if obstacle:
            table.notes.append(obstacle)
            continue
        add(table, measure(setting))
    table.notes += [
        "measured: the highest resident set less that of the process before rows and data were made; without pairs: "
        "the same ratio, with the matrices over all pairs left out of the prediction.",
    ]
    print(f"\n{table.markdown()}")
    if words.out is not None:
        words.out.mkdir(parents=True, exist_ok=True)
        head = "# Memory benchmark\n\nMade by `python scripts/bench_memory.py`.\n\n"
        (words.out / "memory.md").write_text(f"{head}{table.markdown()}\n", encoding="utf-8")
        asked = {name: str(value) if isinstance(value, Path) else value for name, value in vars(words).items()}
        write_json(words.out / "memory.json", {"machine": machine("cpu"), "asked": asked}, {"memory": table})
        print(f"\nwrote {words.out}")
    return 0


def make_parser() -> argparse.ArgumentParser:
    """Make the parser of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    settings = "; ".join(f"{name}: {s.clients} {s.network} of {s.samples} samples" for name, s in SETTINGS.items())
    parser.add_argument("--only", nargs="+", choices=SETTINGS, default=list(SETTINGS), help=settings)
    for name, what in (("clients", "clients"), ("samples", "samples of a client"), ("batch-size", "batch size")):
        parser.add_argument(f"--{name}", type=_count, metavar="N", help=f"{what}, in place of the setting's own")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="gets memory.md and memory.json")
    return parser


def resized(setting: Setting, words: argparse.Namespace) -> Setting:
    """Replace numbers of a setting by those of the command line."""
    given = {name: getattr(words, name) for name in ("clients", "samples", "batch_size")}
    changed = replace(setting, **{name: number for name, number in given.items() if number is not None})
    share = changed.clients * changed.samples / (setting.clients * setting.samples)
    return replace(changed, seconds=setting.seconds * share)


def too_large(setting: Setting) -> str:
    """Return why a setting is skipped: two copies of its rows exceed the free memory; empty if they fit."""
    columns = {"LeNet": 62_006, "ResNet18": 11_173_962}[setting.network]
    needed = 2 * 4 * columns * setting.clients
    (line,) = (line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemAvailable"))
    free = 1024 * int(line.split()[1])
    if needed < 0.9 * free:
        return ""
    return (
        f"{setting.clients} {setting.network} clients need {needed / 1e9:.1f} GB for their rows, and "
        f"{free / 1e9:.1f} GB are free: not run; lower --clients."
    )


def measure(setting: Setting) -> dict[str, Any]:
    """Run a setting in a process of its own."""
    asked = {name: value for name, value in asdict(setting).items() if name != "seconds"}
    path = os.pathsep.join([str(SCRIPTS), str(SCRIPTS.parent), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path}
    command = [sys.executable, "-m", "benchmarks.resident", json.dumps(asked)]
    ended = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if ended.returncode:
        sys.exit(f"bench_memory: the process of {setting.network} ended with {ended.returncode}; see above")
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return found


def add(table: Table, found: dict[str, Any]) -> None:
    """Add a row to the table."""
    predicted = found["predicted"]
    total = sum(predicted.values())
    megabytes = [predicted["rows"], predicted["data"], predicted["work"], predicted["links"], total, found["grown"]]
    table.rows.append(
        [
            f"{found['clients']} x {found['samples']}, {found['network']}, B {found['batch_size']}",
            *(f"{number / 1e6:.1f}" for number in megabytes),
            *(
                f"{part / found['grown']:.2f}" if found["grown"] else "–"
                for part in (total, total - predicted["links"])
            ),
        ]
    )
    table.numbers.append(found)


def _count(text: str) -> int:
    number = int(text)
    if number < 2:
        raise argparse.ArgumentTypeError(f"{number}; it must be 2 or more")
    return number


if __name__ == "__main__":
    sys.exit(main())
