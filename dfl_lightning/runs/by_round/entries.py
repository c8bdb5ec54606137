"""Arrays by round that a run keeps in addition to the rows of metrics.csv, written as npz files."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from dfl_lightning.runs.tables import read_rounds
from dfl_lightning.utils.storage.files import write_npz

if TYPE_CHECKING:
    from dfl_lightning.round.record import Round

Entry = dict[str, np.ndarray]
"""The arrays of one round, by name."""

MOST_CLIENTS = 1000
"""The largest number of clients whose comparisons, one for each pair, are kept."""

MOST_ROUNDS, MOST_BYTES = 64, 20 * 2**20
"""Limits on the kept comparisons, which have a number for each pair of clients."""


class Entries:
    """A table with a column `round`: links, dropouts or divergences.

    Args:
        file: its name in the run folder.
        always: True if the file is written even if the table is empty.
    """

    def __init__(self, file: str, always: bool = False) -> None:
        self.file, self.always = file, always
        self.rounds: dict[int, Entry] = {}

    def add(self, round: int, more: bool = False, **columns: np.ndarray) -> None:
        """Add the rows of a round, under a first column `round`.

        Args:
            round: 0-based.
            more: whether the rows are added to those of an earlier wave of the round.
            columns: the other columns by name, of equal length.
        """
        length = len(next(iter(columns.values())))
        added = {"round": np.full(length, round, dtype=np.int32), **columns}
        former = self.rounds.get(round, {}) if more else {}
        self.rounds[round] = {
            name: np.concatenate([former[name], column]) if name in former else column for name, column in added.items()
        }

    def before(self, round: float = math.inf) -> Entry:
        """Return the rows of the rounds before this one, by column, without columns that a round lacks."""
        parts = [self.rounds[r] for r in sorted(self.rounds) if r < round]
        names = [name for name in (parts[0] if parts else {}) if all(name in part for part in parts)]
        return {name: np.concatenate([part[name] for part in parts]) for name in names}

    def read(self, folder: Path, done: int) -> None:
        """Read the rounds that a resumed run keeps.

        Args:
            folder: the run folder.
            done: number of complete rounds; later ones are left out.
        """
        self.rounds = {r: entry for r, entry in read_rounds(folder / self.file, "round").items() if r < done}

    def write(self, folder: Path, done: int) -> None:
        """Write the complete rounds, unless the table is empty and its file does not exist.

        Args:
            folder: the run folder.
            done: number of complete rounds.
        """
        if self.always or self.rounds or (folder / self.file).is_file():
            write_npz(folder / self.file, self.before(done))


class Comparisons:
    """The similarities between clients, and their thresholds, in some of the rounds.

    A number for each pair of clients takes much space. So the rounds are thinned, to every second, fourth … recorded
    one. The choice depends only on the number of the last one, so that a resumed run keeps the same rounds.
    """

    file = "comparisons.npz"

    def __init__(self) -> None:
        self.rounds: dict[int, Entry] = {}

    def add(self, number: int, every: int, similarity: np.ndarray | None, threshold: np.ndarray | None) -> None:
        """Add the comparisons of a round, and drop those that the limits no longer allow.

        Args:
            number: index of the recorded round, 0-based; it is round `number * every + every - 1`.
            every: distance between two recorded rounds.
            similarity: float [k, k], NaN = unknown; None if nothing was compared.
            threshold: float [n]; None if there is no threshold.
        """
        arrays = {"similarity": similarity, "threshold": threshold}
        entry = {name: array.astype(np.float32) for name, array in arrays.items() if array is not None}
        if not entry:
            return
        size = sum(array.nbytes for array in entry.values())
        step = spacing(number, min(MOST_ROUNDS, max(1, MOST_BYTES // max(size, 1))))
        self.rounds[number * every + every - 1] = entry
        self.rounds = {r: e for r, e in self.rounds.items() if (r // every) % step == 0}

    def before(self, round: float = math.inf) -> Entry:
        """Return `rounds` [k] and arrays [k, …] by name, of the rounds before this one."""
        kept = {r: entry for r, entry in self.rounds.items() if r < round}
        return stacked(kept) if kept else {}

    def read(self, folder: Path, done: int) -> None:
        """Read the rounds that a resumed run keeps.

        Args:
            folder: the run folder.
            done: number of complete rounds; later ones are left out.
        """
        entries = read_rounds(folder / self.file, "rounds")
        self.rounds = {r: {name: array[0] for name, array in e.items()} for r, e in entries.items() if r < done}

    def write(self, folder: Path, done: int) -> None:
        """Write the complete rounds, unless the table is empty and its file does not exist.

        Args:
            folder: the run folder.
            done: number of complete rounds.
        """
        if self.rounds or (folder / self.file).is_file():
            write_npz(folder / self.file, self.before(done))


def similarity_of(round: Round) -> Tensor | None:
    """Return the similarities that a round's selection or substitution computed, float64 [n, n]; NaN if unknown."""
    if round.has("similarity"):
        return round.candidates.dense(round.similarity)
    return None if round.likeness is None else round.likeness.links.dense(round.likeness.values)


def spacing(last: int, most: int) -> int:
    """Return the smallest power of two that has at most `most` multiples among the numbers 0 to `last`.

    Examples:
        >>> spacing(63, 64), spacing(64, 64), spacing(200, 64)
        (1, 2, 4)
    """
    step = 1
    while last // step + 1 > most and step <= last:
        step *= 2
    return step


def stacked(rounds: dict[int, Entry]) -> Entry:
    """Stack the arrays of k rounds: return `rounds` [k] and arrays [k, …], NaN where a round lacks one."""
    order = sorted(rounds)
    arrays = {"rounds": np.array(order, dtype=np.int64)}
    for name in dict.fromkeys(name for r in order for name in rounds[r]):
        by_round = [rounds[r].get(name) for r in order]
        unknown = np.full_like(next(values for values in by_round if values is not None), np.nan)
        arrays[name] = np.stack([unknown if values is None else values for values in by_round])
    return arrays
