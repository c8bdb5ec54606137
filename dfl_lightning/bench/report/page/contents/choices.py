"""The choices of each client, round by round: of its own ground-truth cluster, of others, and no longer."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from dfl_lightning.bench.report.network import number_of_nodes, recorded_rounds
from dfl_lightning.bench.report.over_seeds import from_one
from dfl_lightning.runs.reading import Run

_CHOICES: WeakKeyDictionary[Run, dict[str, Any] | None] = WeakKeyDictionary()


def choices(run: Run) -> dict[str, Any] | None:
    """Count for each client and recorded round the senders that it chose, and those that it no longer chose.

    Args:
        run: run whose clients learn from each other.

    Returns:
        `rounds`, counted from 1; `known`, True if ground-truth clusters are known; and for each client a list over
        the rounds in `same` (senders of its own cluster, or all if clusters are unknown), `other` (senders of other
        clusters), `gone` (senders of the recorded round before that it did not choose again) and `absent` (1 where it
        dropped out). None if no client chose another one. It is computed once for a run: do not change it.
    """
    if run not in _CHOICES:
        _CHOICES[run] = _counted(run)
    return _CHOICES[run]


def _counted(run: Run) -> dict[str, Any] | None:
    m, graphs, rounds = number_of_nodes(run)[0], run.graphs, recorded_rounds(run)
    if not rounds:
        return None
    receiver, sender = (graphs[name].astype(np.int64) for name in ("receiver", "sender"))
    chosen = graphs["selected"].astype(bool) & (receiver < m) & (sender < m) & (receiver != sender)
    if not chosen.any():
        return None
    of_round = graphs["round"][chosen]
    pairs = receiver[chosen] * m + sender[chosen]
    clusters = run.split.get("clusters", np.array([]))
    known = len(clusters) == m and len(np.unique(clusters)) > 1
    of_cluster = clusters if known else np.zeros(m, dtype=np.int64)
    counts = {name: np.zeros((m, len(rounds)), dtype=np.int64) for name in ("same", "other", "gone", "absent")}
    before = np.array([], dtype=np.int64)
    dropped = run.dropouts
    for at, r in enumerate(rounds):
        now = np.unique(pairs[of_round == r])
        is_same = of_cluster[now // m] == of_cluster[now % m]
        counts["same"][:, at] = np.bincount(now[is_same] // m, minlength=m)
        counts["other"][:, at] = np.bincount(now[~is_same] // m, minlength=m)
        counts["gone"][:, at] = np.bincount(np.setdiff1d(before, now) // m, minlength=m)
        if dropped:
            counts["absent"][dropped["client"][dropped["round"] == r], at] = 1
        before = now
    return {
        "rounds": [from_one(r) for r in rounds],
        "known": bool(known),
        **{name: array.tolist() for name, array in counts.items()},
    }
