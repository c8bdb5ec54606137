"""Share the clients out among more and more processes: memory and seconds of each, and bytes that they exchange.

    python scripts/bench_processes.py                                  # 10,000 clients, 1, 2 and 4 processes
    python scripts/bench_processes.py --system gossip --clients 100000 --processes 1 4 --limit 1800

The federation of `bench_scale.py`, on the CPU with gloo. Memory is the growth of a process' resident set over the
loaded libraries to its peak (VmHWM of /proc); seconds are those of its processor. Needs Linux.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from benchmarks.scale_job import HIDDEN, SYSTEMS
from benchmarks.started import run_job
from benchmarks.tables import Table


def main(argv: Sequence[str] | None = None) -> int:
    """Measure what was asked for; returns the exit code."""
    words = make_parser().parse_args(argv)
    table = Table(
        f"{words.system}, {words.clients:,} clients",
        ["processes", "MB, first process", "MB, others", "s/round, slowest process", "MB exchanged in a round"],
    )
    failed = False
    for count in words.processes:
        job = {"system": words.system, "clients": words.clients, "degree": words.degree, "samples": words.samples}
        job |= {"hidden": HIDDEN, "rounds": words.rounds, "threads": 1, "processes": count}
        found, obstacle = run_job(job, words.limit)
        failed |= bool(obstacle)
        table.rows.append([str(count), obstacle, "", "", ""] if obstacle else row(found))
        print(f"{count} processes: {obstacle or 'measured'}", file=sys.stderr, flush=True)
    print(table.markdown())
    return int(failed)


def row(found: Sequence[dict[str, Any]]) -> list[str]:
    """Format the measurements of a run's processes as cells of a row.

    Args:
        found: of each process, the first one first.

    Examples:
        >>> cell = {"grown": 5e6, "seconds": {"wall": 2.0}, "moved": 3e6}
        >>> row([cell, {**cell, "grown": 4e6, "moved": 0}])
        ['2', '5', '4', '2', '3']
    """
    first, *others = ({**cell, "MB": cell["grown"] / 1e6} for cell in found)
    most = max((cell["MB"] for cell in others), default=None)
    slowest = max(cell["seconds"]["wall"] for cell in found)
    return [
        str(len(found)),
        f"{first['MB']:.0f}",
        "" if most is None else f"{most:.0f}",
        f"{slowest:.3g}",
        f"{first['moved'] / 1e6:.0f}",
    ]


def make_parser() -> argparse.ArgumentParser:
    """Make the parser of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--system", choices=SYSTEMS, default="afind", help="%(default)s")
    parser.add_argument("--processes", nargs="+", type=int, default=[1, 2, 4], metavar="N", help="%(default)s")
    parser.add_argument("--clients", type=int, default=10_000, metavar="N", help="%(default)s")
    parser.add_argument("--degree", type=int, default=10, metavar="N", help="neighbours of a client (%(default)s)")
    parser.add_argument("--samples", type=int, default=24, metavar="N", help="of a client (%(default)s)")
    parser.add_argument("--rounds", type=int, default=1, metavar="N", help="rounds that count (%(default)s)")
    parser.add_argument("--limit", type=float, default=600.0, metavar="S", help="seconds of a run (%(default)s)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
