"""Compact form of the links of all shown rounds of a run: weights, and changes of chosen links from round to round."""

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
    clients_only,
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
"""Largest number of links of a round that the graph draws; with more, there is only a matrix, binned by cluster."""

_FEW_GROUPS = 40
_COLUMNS = ("neighbour_precision", "neighbour_recall", "friend_accuracy", "threshold", "adversary_links")


def run_entry(method: Method, run: Run) -> dict[str, Any] | None:
    """Return the data of a run's links for the page; None if the run has recorded none.

    Rounds in the data are counted from 1. `unknown` says why the page does not know whom a client chose in a round.

    Args:
        method: method to which the run belongs.
        run: one of the method's runs.
    """
    rounds = recorded_rounds(run)
    if not rounds:
        return None
    by_round = links_by_round(run, rounds)
    n = number_of_nodes(run)[1]
    entry = {**_about(method, run), "nodes": nodes(run)}
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
    if any(node["server"] for node in entry["nodes"]):
        entry["unknown"] = "A round cannot be chosen: clients learn from a server, and choose no clients."
    if binned:
        entry["groups"] = groups(entry["nodes"])[1]
        entry["most"] = round_to(max(_largest_share(each["bins"]) for each in entry["rounds"]))
        entry.setdefault(
            "unknown",
            f"A round cannot be chosen: with more than {MOST_LINKS:,} links in a round, the page counts them by group.",
        )
    else:
        entry["most"] = round_to(largest_weight(run))
        entry |= {"area": node_area(len(entry["nodes"])), "marks": mark_areas(len(entry["nodes"]))}
    return entry


def light_entry(method: Method, run: Run) -> dict[str, Any]:
    """Return what the page needs of a run whose clients can be opened, but whose graphs are left out.

    Args:
        method: method to which the run belongs.
        run: one of the method's runs.
    """
    last = int(run.metrics["round"][-1])
    only = {"round": from_one(last), "absent": [], "numbers": _numbers(run, last)}
    clients = number_of_nodes(run)[0]
    why = "clients train alone here" if method.is_local else "this run recorded no links"
    if recorded_rounds(run):
        why = "the page has graphs of some runs only, and a page of this run alone has its graphs, too"
    about = {**_about(method, run), "unknown": f"A round cannot be chosen: {why}."}
    return {**about, "nodes": clients_only(run)[:clients], "light": True, "rounds": [only]}


def _about(method: Method, run: Run) -> dict[str, Any]:
    return {
        "method": method.full_name,
        "seed": seed_of(run),
        "last": from_one(run.metrics["round"][-1]),
        "score": {
            "column": run.score.column,
            "label": f"test {run.score.label}",
            "axis": run.score.axis,
            "percent": run.score.percent,
            "higher": run.score.higher_is_better,
        },
    }


def _changes(links: list[Link], before: list[Link] | None, n: int) -> dict[str, Any]:
    """Encode the links of a round as changes to the round before.

    A pair is the number `receiver * n + sender`; lists of pairs are sorted, and stored as differences (see `_steps`).
    `new` lists pairs that are chosen now, but not before. `dropped` lists pairs that are no longer chosen, and `ended`
    those that are now mixed without being chosen, both as indices among the pairs chosen before, which take less room.
    `weights` are those of all chosen pairs, sorted by pair, in thousandths.
    """
    flat: dict[str, list[tuple[int, float]]] = {}
    for receiver, sender, state, weight in links:
        flat.setdefault(state, []).append((receiver * n + sender, weight))
    for pairs_and_weights in flat.values():
        pairs_and_weights.sort()
    chosen = sorted([*flat.get(KEPT, []), *flat.get(NEW, [])])
    entry: dict[str, Any] = {"weights": [_thousandths(w) for _, w in chosen]}
    chosen_before = sorted(receiver * n + sender for receiver, sender, state, _ in before or [] if state in (KEPT, NEW))
    index_of = {pair: index for index, pair in enumerate(chosen_before)}
    dropped = [pair for pair, _ in flat.get(DROPPED, [])]
    ended = sorted(set(chosen_before) - {pair for pair, _ in chosen} - set(dropped))
    for name, pairs in ((DROPPED, dropped), ("ended", ended)):
        if pairs:
            entry[name] = _steps([index_of[pair] for pair in pairs])
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
    """Return the difference of each number to the one before; the first number stays."""
    return np.diff(np.array([0, *values])).tolist()


def groups(points: list[dict[str, Any]]) -> tuple[list[int], list[str]]:
    """Group nodes by ground-truth cluster; if clusters are unknown, into blocks of ids.

    Returns:
        The index of each node's group, and the names of the groups. Servers are the last group.
    """
    clusters = sorted({p["cluster"] for p in points if not p["server"]})
    if len(clusters) > 1 and len(clusters) <= _FEW_GROUPS:
        index_of = {cluster: index for index, cluster in enumerate(clusters)}
        names = [f"cluster {cluster}" for cluster in clusters]
        members = [index_of.get(p["cluster"], len(clusters)) for p in points]
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
    """Count the chosen links between each pair of groups, and all links by state."""
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
    """Return the largest share of a receiving group's links that come from one group; 1 without links."""
    receiver, _, counts = map(np.asarray, bins)
    totals = np.bincount(receiver, counts) if len(receiver) else np.zeros(1)
    return float((counts / totals[receiver]).max()) if len(receiver) else 1.0


def _absent(run: Run, round: int) -> list[int]:
    dropped = run.dropouts
    return sorted(dropped["client"][dropped["round"] == round].tolist()) if dropped else []


def _numbers(run: Run, round: int) -> dict[str, float]:
    """Return the score and the columns of metrics.csv that the page shows with a round."""
    rows = np.flatnonzero(run.metrics["round"] == round)
    values = {
        name: float(run.metrics[name][rows[0]])
        for name in (run.score.column, *_COLUMNS)
        if len(rows) and name in run.metrics
    }
    return {name: round_to(value) for name, value in values.items() if math.isfinite(value)}


def round_to(value: float, digits: int = 4) -> float:
    """Round a number to significant digits.

    Args:
        value: finite or not.
        digits: number of significant digits, 1 or more.
    """
    return float(f"{value:.{digits}g}")
