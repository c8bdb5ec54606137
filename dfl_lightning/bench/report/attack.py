"""The attack that a run is under: who is honest, and what falsifies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from dfl_lightning.runs.reading import Run
from dfl_lightning.runs.summary import LABELS
from dfl_lightning.utils.words import enumerated

if TYPE_CHECKING:
    from dfl_lightning.bench.report.methods import Method


def adversaries(run: Run, clients: int) -> np.ndarray:
    """Say which clients falsify messages or labels, bool [clients].

    Args:
        run: its summary names them; an unfinished one's split file names those with falsified labels.
        clients: their number.
    """
    attack = run.summary.get("attack")
    if attack is not None:
        return np.isin(np.arange(clients), attack["clients"])
    labels = run.split.get("adversaries", np.array([]))
    return labels.astype(bool) if len(labels) == clients else np.zeros(clients, dtype=bool)


def honest(run: Run, clients: int) -> np.ndarray:
    """Say over which clients mean scores are taken, bool [clients]: the honest ones, or all where none is.

    Args:
        run: any.
        clients: their number.
    """
    found = ~adversaries(run, clients)
    return found if found.any() else ~found


def attack_of(run: Run) -> str:
    """Name the attack of a run; empty without one.

    Args:
        run: any.
    """
    clients = run.num_clients or 0
    number = int(adversaries(run, clients).sum())
    if not number:
        return ""
    by = run.summary.get("attack", {}).get("by", [LABELS])
    return f"{' and '.join(by)}, {number} of {clients} clients"


def attacks(methods: Sequence[Method]) -> dict[str, list[str]]:
    """Group the names of methods by their attack, in their order; the key of those without one is empty.

    Args:
        methods: of a task.
    """
    found: dict[str, list[str]] = {}
    for method in methods:
        for words in dict.fromkeys(attack_of(run) for run in method.runs):
            found.setdefault(words, []).append(method.name)
    return found


def under_attack(methods: Sequence[Method]) -> str:
    """Say under which attack methods are, for a headline; empty without one.

    Args:
        methods: of a task.
    """
    found = attacks(methods)
    if not any(found):
        return ""
    if len(found) == 1:
        return f"under attack ({next(iter(found))})"
    parts = [f"{enumerated(names)} {f'under {words}' if words else 'without one'}" for words, names in found.items()]
    return f"attacks differ ({'; '.join(parts)})"
