"""Grow the number of clients at a fixed number of neighbours: seconds and memory of a round, and how they grow.

    python scripts/bench_scale.py                               # 1,000 to 30,000 clients; prints how long it will take
    python scripts/bench_scale.py --systems gossip afind --clients 100 1000 --out runs/benchmarks
    python scripts/bench_scale.py --systems gossip one_peer --turns 3    # by turns; ratios to the first of them
    python scripts/bench_scale.py --femnist DATA --clients 3596 --degree 20 --systems gossip afind --limit 3600

A small network (digits, 64-32-10, 2,410 parameters) with few samples a client, on a random regular graph, or on the
graphs of the round where a system has its own. Each cell runs in a fresh process. Seconds are those on the processor
with one thread, comparable on a machine that is not quiet; with --threads 2 or more, by the clock on the wall. Memory
is the growth of the resident set to its peak (VmHWM of /proc) over the loaded process. Growth between two numbers of
clients is an exponent: 1 is linear, 2 quadratic. FL-FDMS compares all pairs of clients at a server, so it is quadratic
by nature, and not measured above 3,000 there (fdms); without a server (friends) it compares each client's neighbours.
Needs Linux.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from itertools import pairwise, product
from pathlib import Path
from typing import Any

from benchmarks.chart import draw_scale
from benchmarks.rounds import VERBS
from benchmarks.scale_job import BATCH_SIZE, HIDDEN, SYSTEMS
from benchmarks.started import run_job
from benchmarks.tables import Table, busy_note, machine, write_json
from benchmarks.turns import merged, rotated

PROC = Path("/proc/self/status")
CLIENTS = (1000, 3000, 10_000, 30_000)
MOST_OF_FDMS = 3000
"""Clients at a server whose pairs are compared in reasonable time."""


def main(argv: Sequence[str] | None = None) -> int:
    """Measure what was asked for; returns the exit code."""
    words = make_parser().parse_args(argv)
    if not PROC.is_file():
        print("bench_scale: there is no /proc here; run it on Linux", file=sys.stderr)
        return 2
    clients = sorted(set(words.clients))
    if clients[0] <= words.degree or any(m * words.degree % 2 for m in clients):
        print(
            f"bench_scale: no regular graph of {clients[0]} nodes has degree {words.degree}; every number of --clients "
            "must be above --degree, and their product even",
            file=sys.stderr,
        )
        return 2
    seconds = sum(min(words.limit, guess(m, words.rounds, bool(words.femnist))) for m in clients) * len(words.systems)
    seconds *= words.turns
    print(f"about {seconds:.0f} s on a quiet core; at most {words.limit:.0f} s a cell", flush=True)
    found: list[dict[str, Any]] = []
    tables: dict[str, Table] = {}
    for turn, m in product(range(words.turns), clients):
        for system in rotated(words.systems, turn):
            found.append({**cell(system, m, words, found), "turn": turn})
            print(f"{system}, {m:,} clients: {told(found[-1])}", flush=True)
            cells = merged(sorted(found, key=lambda cell: words.systems.index(cell["system"])))
            tables = {"scale": times_table(cells, words.threads), "memory": memory_table(cells)}
            if words.out is not None:
                save(words.out, words, tables)
    for table in tables.values():
        print(f"\n{table.markdown()}")
    if words.out is not None:
        print(f"\nwrote {words.out}")
    return 0


def make_parser() -> argparse.ArgumentParser:
    """Make the parser of the command line."""
    systems = "\n".join(f"  {name:10} {system.what}" for name, system in SYSTEMS.items())
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=f"systems:\n{systems}", formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS), metavar="A", help="default all")
    parser.add_argument("--clients", nargs="+", type=_count, default=list(CLIENTS), metavar="N", help="%(default)s")
    parser.add_argument("--degree", type=_count, default=10, metavar="N", help="neighbours of a client (%(default)s)")
    parser.add_argument("--samples", type=_count, default=24, metavar="N", help="of a client (%(default)s)")
    parser.add_argument("--hidden", type=_count, default=HIDDEN, metavar="N", help="units of the layer (%(default)s)")
    parser.add_argument(
        "--femnist",
        type=_folder,
        metavar="ROOT",
        help="LeNet and the writers of FEMNIST there, each as often as needed",
    )
    parser.add_argument("--rounds", type=_count, default=2, metavar="N", help="rounds that count (%(default)s)")
    parser.add_argument("--turns", type=_count, default=1, metavar="N", help="times that all is measured (%(default)s)")
    parser.add_argument("--threads", type=_count, default=1, metavar="N", help="of torch (%(default)s)")
    parser.add_argument("--limit", type=float, default=300.0, metavar="S", help="seconds of a cell (%(default)s)")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="gets scale.md, scale.json and scale.png")
    return parser


def guess(clients: int, rounds: int, lenet: bool = False) -> float:
    """Estimate the seconds of a cell on a quiet core: loading, and a part for each client.

    Examples:
        >>> round(guess(100, 2)), round(guess(10_000, 2))
        (13, 72)
    """
    return 12 + (1 + rounds) * (0.03 if lenet else 2e-3) * clients


def cell(system: str, clients: int, words: argparse.Namespace, before: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Measure a cell; if that fails, `obstacle` says why."""
    asked = {"system": system, "clients": clients}
    given_up = [
        other for other in before if other["system"] == system and "obstacle" in other and other["clients"] <= clients
    ]
    if given_up:
        return {**asked, "obstacle": f"not run: {given_up[0]['clients']:,} clients were too many already"}
    if system == "fdms" and clients > MOST_OF_FDMS:
        return {**asked, "obstacle": "not run: it compares all pairs of clients"}
    names = ("degree", "samples", "hidden", "femnist", "rounds", "threads")
    job = {**asked, **{name: getattr(words, name) for name in names}, "processes": 1}
    lines, obstacle = run_job(job, words.limit)
    return {**asked, "obstacle": obstacle} if obstacle else lines[-1]


def told(found: dict[str, Any]) -> str:
    """Describe a cell in a line."""
    if "obstacle" in found:
        return str(found["obstacle"])
    return f"{found['seconds']['wall']:.3g} s a round, {found['grown'] / 1e6:.0f} MB, {found['setup']:.3g} s before"


def exponent(before: tuple[float, float], now: tuple[float, float]) -> float:
    """Compute the exponent of growth between two (size, number): 1 is linear, 2 quadratic; NaN if either is not > 0.

    Examples:
        >>> exponent((100, 3.0), (1000, 300.0))
        2.0
    """
    if min(before[1], now[1]) <= 0:
        return math.nan
    return math.log(now[1] / before[1]) / math.log(now[0] / before[0])


def growth(cells: Sequence[dict[str, Any]], number: str) -> list[str]:
    """Format for each cell the exponent since the cell before of the same system; empty if there is none.

    Args:
        cells: with `system`, `clients` and the number, or without it.
        number: a key; `a.b` is b within a.
    """

    def read(cell: dict[str, Any]) -> float:
        value: Any = cell
        for key in number.split("."):
            value = value.get(key, {})
        return float(value) if isinstance(value, int | float) else math.nan

    found = [""] if cells else []
    for before, now in pairwise(cells):
        of_one = before["system"] == now["system"]
        value = exponent((before["clients"], read(before)), (now["clients"], read(now))) if of_one else math.nan
        found.append("" if math.isnan(value) else f"{value:.1f}")
    return found


def times_table(cells: Sequence[dict[str, Any]], threads: int) -> Table:
    """Make a table of the seconds of a round by verb, with exponents of the whole and its parts."""
    parts = (*VERBS, "rest")
    ratios = [f"{cell['ratio']:.2f}" if "ratio" in cell else "" for cell in cells]
    columns = ["system", "clients", "s/round", *parts, "ms/client", "growth", *(f"{part} growth" for part in parts)]
    columns += [f"/ {cells[0]['system']}"] if any(ratios) else []
    clock = "on the processor, one thread" if threads == 1 else f"on the wall, {threads} threads"
    table = Table(f"A round: seconds {clock}", columns, numbers=list(cells))
    grown = {name: growth(cells, f"seconds.{name}") for name in ("wall", *parts)}
    for place, cell in enumerate(cells):
        name = [cell["system"], f"{cell['clients']:,}"]
        if "obstacle" in cell:
            table.rows.append([*name, "–", *[""] * (len(columns) - 3)])
            table.notes.append(f"{cell['system']}, {cell['clients']:,} clients: {cell['obstacle']}.")
            continue
        spent = cell["seconds"]
        seconds = [f"{spent[part]:.3g}" for part in ("wall", *parts)]
        exponents = [grown[part][place] if part == "wall" or spent[part] > 1e-3 else "" for part in ("wall", *parts)]
        table.rows.append([*name, *seconds, f"{1e3 * spent['wall'] / cell['clients']:.2f}", *exponents])
        table.rows[-1] += [ratios[place]] if any(ratios) else []
    table.notes += [
        "Medians over rounds without the first, and over turns. train: local training; evaluate: losses of others' "
        "models and the reported evaluation; compare, mix: the verbs; rest: policies, what is sent, promises, run "
        "folder, Lightning.",
        f"Growth: log of the ratio over log of the ratio of clients, since the row above. Batch size {BATCH_SIZE}.",
        busy_note([cell.get("others") for cell in cells]),
    ]
    return table


def memory_table(cells: Sequence[dict[str, Any]]) -> Table:
    """Make a table of predicted and measured megabytes."""
    columns = ["system", "clients", "predicted", "measured", "growth", "kB/client", "s before the first round"]
    table = Table("Memory: MB in addition to the loaded process", columns, numbers=list(cells))
    grown = growth(cells, "grown")
    for place, cell in enumerate(cells):
        name = [cell["system"], f"{cell['clients']:,}"]
        if "obstacle" in cell:
            table.rows.append([*name, "–", *[""] * (len(columns) - 3)])
            continue
        megabytes = [f"{number / 1e6:.0f}" for number in (sum(cell["predicted"].values()), cell["grown"])]
        per_client = f"{cell['grown'] / 1e3 / cell['clients']:.1f}"
        table.rows.append([*name, *megabytes, grown[place], per_client, f"{cell['setup']:.1f}"])
    table.notes.append("Before the first round: data, graph, split and models, after the libraries were loaded.")
    return table


def save(folder: Path, words: argparse.Namespace, tables: dict[str, Table]) -> None:
    """Write the Markdown, JSON and picture of the cells so far."""
    folder.mkdir(parents=True, exist_ok=True)
    where = machine("cpu")
    head = f"# Scale benchmark\n\n{where['processor']}, {where['cores']} cores, torch {where['torch']}. "
    pool = "LeNet and FEMNIST's writers" if words.femnist else f"{words.samples} samples a client"
    head += f"{words.degree} neighbours, {pool}. Made by `python scripts/bench_scale.py`.\n\n"
    text = head + "\n\n".join(table.markdown() for table in tables.values()) + "\n"
    if draw_scale(tables["scale"].numbers, folder / "scale.png"):
        text += "\n![Seconds and memory of a round by the number of clients](scale.png)\n"
    (folder / "scale.md").write_text(text, encoding="utf-8")
    asked = {name: str(value) if isinstance(value, Path) else value for name, value in vars(words).items()}
    write_json(folder / "scale.json", {"machine": where, "asked": asked}, {"scale": tables["scale"]})


def _folder(text: str) -> str:
    if not Path(text).is_dir():
        raise argparse.ArgumentTypeError(f"the folder {text} does not exist")
    return str(Path(text).resolve())


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number}; it must be 1 or more")
    return number


if __name__ == "__main__":
    sys.exit(main())
