"""The attack that a run is under: its adversaries, its honest clients, and the attack's name."""

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
    """Return a mask of the clients that falsify messages or labels, bool [clients].

    The run's summary names them. An unfinished run has none yet; its split file names those with falsified labels.

    Args:
        run: finished or not.
        clients: number of clients.
    """
    attack = run.summary.get("attack")
    if attack is not None:
        return np.isin(np.arange(clients), attack["clients"])
    labels = run.split.get("adversaries", np.array([]))
    return labels.astype(bool) if len(labels) == clients else np.zeros(clients, dtype=bool)


def honest(run: Run, clients: int) -> np.ndarray:
    """Return a mask of the clients over which mean scores are taken: the honest ones, or all if none is honest.

    Args:
        run: finished or not.
        clients: number of clients, the length of the mask.
    """
    mask = ~adversaries(run, clients)
    return mask if mask.any() else ~mask


def attack_of(run: Run) -> str:
    """Describe the attack of a run and count its adversaries; empty without an attack."""
    clients = run.num_clients or 0
    number = int(adversaries(run, clients).sum())
    if not number:
        return ""
    by = run.summary.get("attack", {}).get("by", [LABELS])
    return f"{' and '.join(by)}, {number} of {clients} clients"


def attacks(methods: Sequence[Method]) -> dict[str, list[str]]:
    """Group the names of a task's methods by their attack; the key of methods without an attack is empty."""
    names_by_attack: dict[str, list[str]] = {}
    for method in methods:
        for words in dict.fromkeys(attack_of(run) for run in method.runs):
            names_by_attack.setdefault(words, []).append(method.name)
    return names_by_attack


def under_attack(methods: Sequence[Method]) -> str:
    """Describe the attack on a task's methods for a headline; empty without an attack."""
    by_attack = attacks(methods)
    if not any(by_attack):
        return ""
    if len(by_attack) == 1:
        return f"under attack ({next(iter(by_attack))})"
    parts = [
        f"{enumerated(names)} {f'under {words}' if words else 'without one'}" for words, names in by_attack.items()
    ]
    return f"attacks differ ({'; '.join(parts)})"
