"""What a run keeps of its rounds in addition to a row of metrics: arrays by round, written as npz files."""

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
"""Arrays by name, of one round."""

MOST_CLIENTS = 1000
"""Above this number of clients the comparisons between all pairs of them are not kept."""

MOST_ROUNDS, MOST_BYTES = 64, 20 * 2**20
"""Of comparisons, which have a number for each pair of clients."""


class Entries:
    """A table whose rows name their round: links, dropouts, divergences.

    Args:
        file: its name in the run folder.
        always: whether it is written also where there is nothing in it.
    """

    def __init__(self, file: str, always: bool = False) -> None:
        self.file, self.always = file, always
        self.rounds: dict[int, Entry] = {}

    def add(self, round: int, **columns: np.ndarray) -> None:
        """Add the rows of a round, under a first column `round`.

        Args:
            round: 0-based.
            columns: of equal length, by name.
        """
        length = len(next(iter(columns.values())))
        self.rounds[round] = {"round": np.full(length, round, dtype=np.int32), **columns}

    def before(self, round: float = math.inf) -> Entry:
        """The rows of the rounds before this one, by column; a column that a round lacks is not among them."""
        parts = [self.rounds[r] for r in sorted(self.rounds) if r < round]
        names = [name for name in (parts[0] if parts else {}) if all(name in part for part in parts)]
        return {name: np.concatenate([part[name] for part in parts]) for name in names}

    def read(self, folder: Path, done: int) -> None:
        """Read the rounds that a resumed run keeps.

        Args:
            folder: of the run.
            done: number of complete rounds.
        """
        self.rounds = {r: entry for r, entry in read_rounds(folder / self.file, "round").items() if r < done}

    def write(self, folder: Path, done: int) -> None:
        """Write the complete rounds; no file if there is, and was, nothing.

        Args:
            folder: of the run.
            done: number of complete rounds.
        """
        if self.always or self.rounds or (folder / self.file).is_file():
            write_npz(folder / self.file, self.before(done))


class Comparisons:
    """How alike clients are to each other, and the thresholds, in some of the rounds.

    A number for each pair of clients takes room, so there is a limit: rounds are thinned to every second, fourth …
    recorded one. Which are kept depends on the last one only, so that a resumed run keeps the same.
    """

    file = "comparisons.npz"

    def __init__(self) -> None:
        self.rounds: dict[int, Entry] = {}

    def add(self, number: int, every: int, similarity: np.ndarray | None, threshold: np.ndarray | None) -> None:
        """Keep what is known in a round.

        Args:
            number: of the recorded round, 0-based; it is round `number * every + every - 1`.
            every: rounds between two recorded ones.
            similarity: float [k, k], NaN = unknown.
            threshold: float [n].
        """
        known = {"similarity": similarity, "threshold": threshold}
        entry = {name: array.astype(np.float32) for name, array in known.items() if array is not None}
        if not entry:
            return
        size = sum(array.nbytes for array in entry.values())
        step = spacing(number, min(MOST_ROUNDS, max(1, MOST_BYTES // max(size, 1))))
        self.rounds[number * every + every - 1] = entry
        self.rounds = {r: e for r, e in self.rounds.items() if (r // every) % step == 0}

    def before(self, round: float = math.inf) -> Entry:
        """`rounds` [k], and arrays [k, …] by name."""
        kept = {r: entry for r, entry in self.rounds.items() if r < round}
        return stacked(kept) if kept else {}

    def read(self, folder: Path, done: int) -> None:
        """Read the rounds that a resumed run keeps.

        Args:
            folder: of the run.
            done: number of complete rounds.
        """
        found = read_rounds(folder / self.file, "rounds")
        self.rounds = {r: {name: array[0] for name, array in e.items()} for r, e in found.items() if r < done}

    def write(self, folder: Path, done: int) -> None:
        """Write the complete rounds; no file if there is, and was, nothing.

        Args:
            folder: of the run.
            done: number of complete rounds.
        """
        if self.rounds or (folder / self.file).is_file():
            write_npz(folder / self.file, self.before(done))


def similarity_of(round: Round) -> Tensor | None:
    """How alike clients are found in a round, by its selection or its substitution: float64 [n, n], NaN = unknown."""
    if round.has("similarity"):
        return round.candidates.dense(round.similarity)
    return None if round.likeness is None else round.likeness.links.dense(round.likeness.values)


def spacing(last: int, most: int) -> int:
    """The smallest power of two with at most `most` multiples among the numbers 0 to `last`.

    Args:
        last: the largest number.
        most: multiples that are allowed.

    Examples:
        >>> spacing(63, 64), spacing(64, 64), spacing(200, 64)
        (1, 2, 4)
    """
    step = 1
    while last // step + 1 > most and step <= last:
        step *= 2
    return step


def stacked(rounds: dict[int, Entry]) -> Entry:
    """`rounds` [k] and the arrays of all rounds, [k, …]; NaN where a round lacks one."""
    order = sorted(rounds)
    arrays = {"rounds": np.array(order, dtype=np.int64)}
    for name in dict.fromkeys(name for r in order for name in rounds[r]):
        found = [rounds[r].get(name) for r in order]
        unknown = np.full_like(next(values for values in found if values is not None), np.nan)
        arrays[name] = np.stack([unknown if values is None else values for values in found])
    return arrays
