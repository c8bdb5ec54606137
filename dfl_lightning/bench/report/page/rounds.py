"""The links of all shown rounds of a run in a form that takes little room: changes of what is chosen, and weights."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dfl_lightning.bench.report.charts.links import mark_areas, node_area
from dfl_lightning.bench.report.methods import Method, seed_of
from dfl_lightning.bench.report.network import (
    DROPPED,
    KEPT,
    NEW,
    OWN,
    PROBED,
    STANDS_IN,
    SUBSTITUTE,
    Link,
    largest_weight,
    links_by_round,
    links_shown,
    nodes,
    number_of_nodes,
    recorded_rounds,
)
from dfl_lightning.bench.report.over_seeds import from_one
from dfl_lightning.runs.reading import Run

MOST_LINKS = 1500
"""Links of a round that the graph draws; with more there is the matrix alone, binned by cluster."""

_FEW_GROUPS = 40
_COLUMNS = ("neighbour_precision", "neighbour_recall", "friend_accuracy", "threshold", "adversary_links")


def run_entry(method: Method, run: Run) -> dict[str, Any] | None:
    """What the page shows of a run's links; None where none were recorded. Rounds count from 1.

    Args:
        method: of the run.
        run: one of its runs.
    """
    rounds = recorded_rounds(run)
    if not rounds:
        return None
    by_round = links_by_round(run, rounds)
    n = number_of_nodes(run)[1]
    entry: dict[str, Any] = {
        "method": method.full_name,
        "seed": seed_of(run),
        "last": from_one(run.metrics["round"][-1]),
        "nodes": nodes(run),
        "score": {
            "column": run.score.column,
            "label": f"test {run.score.label}",
            "axis": run.score.axis,
            "percent": run.score.percent,
            "higher": run.score.higher_is_better,
        },
    }
    binned = max(links_shown(links) for links in by_round.values()) > MOST_LINKS
    before = dict(zip(rounds[1:], rounds, strict=False))

    def content(r: int) -> dict[str, Any]:
        if binned:
            return _bins(by_round[r], entry["nodes"])
        return _changes(by_round[r], by_round.get(before.get(r, -1)), n)

    entry["rounds"] = [
        {
            "round": from_one(r),
            **content(r),
            "absent": _absent(run, r),
            "numbers": _numbers(run, r),
        }
        for r in rounds
    ]
    if binned:
        entry["groups"] = groups(entry["nodes"])[1]
        entry["most"] = round_to(max(_largest_share(each["bins"]) for each in entry["rounds"]))
    else:
        entry["most"] = round_to(largest_weight(run))
        entry |= {"area": node_area(len(entry["nodes"])), "marks": mark_areas(len(entry["nodes"]))}
    return entry


def _changes(links: list[Link], before: list[Link] | None, n: int) -> dict[str, Any]:
    """Pairs as numbers `receiver * n + sender`, in order, each less the one before; weights in thousandths.

    `new`, `dropped` and `ended` (mixed now without being chosen) change what is chosen: `new` has pairs, the others
    have places among the pairs chosen before, which take less room. `weights` are of all chosen pairs in order.
    """
    flat: dict[str, list[tuple[int, float]]] = {}
    for receiver, sender, state, weight in links:
        flat.setdefault(state, []).append((receiver * n + sender, weight))
    for pairs_and_weights in flat.values():
        pairs_and_weights.sort()
    chosen = sorted([*flat.get(KEPT, []), *flat.get(NEW, [])])
    entry: dict[str, Any] = {"weights": [_thousandths(w) for _, w in chosen]}
    was = sorted(receiver * n + sender for receiver, sender, state, _ in before or [] if state in (KEPT, NEW))
    place = {pair: at for at, pair in enumerate(was)}
    dropped = [pair for pair, _ in flat.get(DROPPED, [])]
    ended = sorted(set(was) - {pair for pair, _ in chosen} - set(dropped))
    for name, pairs in ((DROPPED, dropped), ("ended", ended)):
        if pairs:
            entry[name] = _steps([place[pair] for pair in pairs])
    for state in (NEW, PROBED, STANDS_IN):
        if flat.get(state):
            entry[state] = _steps([pair for pair, _ in flat[state]])
    for state in (OWN, SUBSTITUTE):
        if flat.get(state):
            entry[state] = [_steps([pair for pair, _ in flat[state]]), [_thousandths(w) for _, w in flat[state]]]
    return entry


def _thousandths(weight: float) -> int:
    return round(weight * 1000)


def _steps(values: list[int]) -> list[int]:
    """Differences of numbers in order, the first one as it is."""
    return np.diff(np.array([0, *values])).tolist()


def groups(points: list[dict[str, Any]]) -> tuple[list[int], list[str]]:
    """The group of each node and the names: ground-truth clusters where they are known, otherwise blocks of ids."""
    clusters = sorted({p["cluster"] for p in points if not p["server"]})
    if len(clusters) > 1 and len(clusters) <= _FEW_GROUPS:
        place = {cluster: at for at, cluster in enumerate(clusters)}
        names = [f"cluster {cluster}" for cluster in clusters]
        members = [place.get(p["cluster"], len(clusters)) for p in points]
    else:
        clients = sum(not p["server"] for p in points)
        size = math.ceil(clients / min(_FEW_GROUPS, clients))
        names = [f"{a}–{min(a + size, clients) - 1}" for a in range(0, clients, size)]
        members = [min(p["id"] // size, len(names)) for p in points]
    if any(p["server"] for p in points):
        members = [len(names) if p["server"] else g for p, g in zip(points, members, strict=True)]
        names = [*names, "server"]
    return members, names


def _bins(links: list[Link], points: list[dict[str, Any]]) -> dict[str, Any]:
    """How many chosen links lead from each group to each, and how many there are of every kind."""
    members, names = groups(points)
    counts = np.zeros((len(names), len(names)), dtype=np.int64)
    kinds: dict[str, int] = {}
    for link in links:
        kinds[link.state] = kinds.get(link.state, 0) + 1
        if link.state in (KEPT, NEW):
            counts[members[link.receiver], members[link.sender]] += 1
    receiver, sender = np.nonzero(counts)
    return {
        "bins": [receiver.tolist(), sender.tolist(), counts[receiver, sender].tolist()],
        "kinds": kinds,
    }


def _largest_share(bins: list[list[int]]) -> float:
    """The largest part of a group's links that comes from one group; 1 where there is no link."""
    receiver, _, counts = map(np.asarray, bins)
    totals = np.bincount(receiver, counts) if len(receiver) else np.zeros(1)
    return float((counts / totals[receiver]).max()) if len(receiver) else 1.0


def _absent(run: Run, round: int) -> list[int]:
    found = run.dropouts
    return sorted(found["client"][found["round"] == round].tolist()) if found else []


def _numbers(run: Run, round: int) -> dict[str, float]:
    """What metrics.csv says of the round."""
    at = np.flatnonzero(run.metrics["round"] == round)
    values = {
        name: float(run.metrics[name][at[0]])
        for name in (run.score.column, *_COLUMNS)
        if len(at) and name in run.metrics
    }
    return {name: round_to(value) for name, value in values.items() if math.isfinite(value)}


def round_to(value: float, digits: int = 4) -> float:
    """A number with so many significant digits.

    Args:
        value: any.
        digits: 1 or more.
    """
    return float(f"{value:.{digits}g}")
