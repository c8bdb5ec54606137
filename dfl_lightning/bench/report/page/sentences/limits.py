"""Limits of a page of many runs, so that it stays small, and the sentence about what it leaves out."""

from __future__ import annotations

from collections.abc import Sequence

from dfl_lightning.bench.report.comparable import best_first
from dfl_lightning.bench.report.methods import Method
from dfl_lightning.bench.report.over_seeds import last_of_clients
from dfl_lightning.runs.reading import Run

MOST_METHODS = 16
"""Largest number of methods with charts of their own: bands over clients, graphs, similarities and dropouts."""

MOST_RUNS = 12
"""With more runs than this, graphs are only of the first seed of each method, and the table of commands is folded."""

MOST_CLIENTS = 1000
"""Largest number of clients of a run whose clients can be shown one by one."""

_MOST_NAMES = 6
"""Largest number of omitted methods that the sentence names."""


def detailed(methods: Sequence[Method]) -> list[Method]:
    """Choose the methods that have charts of their own, the best ones of each task; their order stays."""
    rank: dict[str, int] = {}
    for task in {method.task for method in methods}:
        of_task = best_first([method for method in methods if method.task == task])
        rank |= {method.full_name: number for number, method in enumerate(of_task)}
    names = sorted(rank, key=lambda name: rank[name])[:MOST_METHODS]
    return [method for method in methods if method.full_name in names]


def with_graphs(methods: Sequence[Method]) -> list[tuple[Method, Run]]:
    """List the runs whose graphs the page shows, with their methods."""
    shown = detailed(methods)
    all_seeds = sum(len(method.runs) for method in shown) <= MOST_RUNS
    return [(method, run) for method in shown for run in (method.runs if all_seeds else method.runs[:1])]


def every_run(methods: Sequence[Method]) -> list[tuple[Method, Run]]:
    """List the runs whose clients the page can open, with their methods: those with numbers of at most 1,000 clients.

    Args:
        methods: methods of the page.
    """
    return [(method, run) for method in methods for run in method.runs if 0 < len(last_of_clients(run)) <= MOST_CLIENTS]


def left_out(methods: Sequence[Method]) -> str:
    """Say what the page does not show, in a sentence or two; empty if it shows everything."""
    words = []
    shown = {method.full_name for method in detailed(methods)}
    others = [method.full_name for method in methods if method.full_name not in shown]
    if others:
        names = others[:_MOST_NAMES]
        more = f"; and {len(others) - _MOST_NAMES} more" if len(others) > _MOST_NAMES else ""
        words.append(
            f"Bands over clients, graphs, similarities and dropouts are of the best {MOST_METHODS} of {len(methods)} "
            f"methods; tables and all other charts are of all. Not among them: {'; '.join(names)}{more}."
        )
    if len(with_graphs(methods)) < sum(len(method.runs) for method in detailed(methods)):
        words.append("Graphs are of the first seed of each method; the clients of all seeds can be opened.")
    if words:
        words.append("A page of fewer runs shows more: dfl-report RUN RUN.")
    return " ".join(words)
