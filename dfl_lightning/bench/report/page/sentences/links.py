"""Words about the recorded links of a method: those of the first seed, and how much the other seeds differ from it."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from pathlib import Path

from dfl_lightning.bench.report.charts.over_run import over_run, within_clusters
from dfl_lightning.bench.report.methods import Method
from dfl_lightning.runs.reading import Run
from dfl_lightning.utils.errors import UserError
from dfl_lightning.utils.words import as_percent, counted


def about_links(method: Method, readable: Container[Path]) -> str:
    """Say which share of all choices is within clusters, and how many senders a client has; empty without links.

    Args:
        method: with a run for each seed; the chart is that of the first one.
        readable: folders of the runs whose links are read.
    """
    runs = [run for run in method.runs if run is method.runs[0] or run.path in readable]
    shares = [share for run in runs if (share := within_clusters(run)) is not None]
    senders = [number for run in runs if (number := mean_senders(run)) is not None]
    first, others = [], []
    if shares and within_clusters(runs[0]) is not None:
        first.append(f"{as_percent(shares[0])} of all choices are within a cluster")
        others.append(_range(shares, as_percent))
    if senders and mean_senders(runs[0]) is not None:
        first.append(f"{senders[0]:.1f} senders a client and round")
        others.append(_range(senders, "{:.1f}".format))
    if not first:
        return ""
    return ", ".join(first) + (f"; over {counted(len(runs), 'seed')} {' and '.join(others)}" if len(runs) > 1 else "")


def mean_senders(run: Run) -> float | None:
    """Compute the mean number of senders that a client chose in a recorded round; None if no client chose another one.

    Args:
        run: run whose clients learn from each other.
    """
    try:
        pairs = over_run(run)
    except UserError:
        return None
    return float(pairs.chosen.sum() / pairs.rounds / len(pairs.chosen))


def _range(values: Sequence[float], text: Callable[[float], str]) -> str:
    low, high = text(min(values)), text(max(values))
    return low if low == high else f"{low.removesuffix(' %')} to {high}"
