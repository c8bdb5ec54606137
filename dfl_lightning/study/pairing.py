"""Whether the rows of a table differ in their methods only: same seed, same data, same first models.

Cells are paired by the rule of the reports, `report.tested`: the same seed and the same test data.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dfl_lightning.report.tested import tested_data
from dfl_lightning.study.cell_state import CellState
from dfl_lightning.utils.errors import UserError, reason
from dfl_lightning.utils.files import read_npz

TESTED, TRAINED, BEGUN = "test data", "training data", "first models"
"""What rows can differ in besides their method; of these only other test data prevent a comparison."""


@dataclass(frozen=True)
class Unlike:
    """A row that differs from the others of its columns in more than its method.

    Attributes:
        row: its name.
        columns: in which it does.
        what: `TESTED`, `TRAINED` or `BEGUN`.
        samples: of `TRAINED`, on how many samples all its clients train, and on how many those of most other rows do,
            with the first seed for which they differ.
    """

    row: str
    columns: tuple[str, ...]
    what: str
    samples: tuple[int, int] | None = None

    @property
    def is_compared(self) -> bool:
        """Whether it has paired differences to the other rows."""
        return self.what != TESTED


def unlike(states: Sequence[CellState], rows: Sequence[str]) -> Iterator[Unlike]:
    """Find the rows whose cells have other data, or other first models, than most of the others of their column.

    Args:
        states: of the cells that are done.
        rows: in the order of the table.

    Raises:
        UserError: the split file of a run is missing or damaged.
    """
    splits = {id(state): _split_of(state) for state in states}
    tested = {id(s): tested_data(splits[id(s)]) or str(s.run) for s in states}  # unknown data are like no others
    trained = {id(s): _trained_on(splits[id(s)]) for s in states}
    yield from (Unlike(row, columns, TESTED) for row, columns in _apart(states, rows, lambda s: tested[id(s)]))
    for row, columns in _apart(states, rows, lambda s: trained[id(s)]):
        yield Unlike(row, columns, TRAINED, _samples(states, row, columns[0], trained))
    yield from (Unlike(row, columns, BEGUN) for row, columns in _apart(states, rows, _begun_from))


def sentences(apart: Sequence[Unlike]) -> Iterator[str]:
    """Say below a table what rows differ in, once for the rows with the same difference.

    Args:
        apart: rows that differ in more than their method.
    """
    for key in dict.fromkeys((u.columns, u.what, u.samples) for u in apart):
        columns, what, samples = key
        names = ", ".join(u.row for u in apart if (u.columns, u.what, u.samples) == key)
        others = f"the other rows of {', '.join(columns)}"
        if what == TESTED:
            yield f"tested on other samples than {others}: {names}; no paired differences"
        elif what == BEGUN:
            yield f"other first models than {others}: {names}; differences to them are paired by the data only"
        elif samples is not None and samples[0] != samples[1]:
            yield f"clients train on {samples[0]:,} samples, those of {others} on {samples[1]:,}: {names}"
        else:
            yield f"clients train on other samples than those of {others}, but on as many: {names}"


def _apart(
    states: Sequence[CellState], rows: Sequence[str], mark: Callable[[CellState], str | tuple[int, str]]
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield each row of which a cell has another mark than most cells of its column and seed, with the columns."""
    differing: dict[str, list[str]] = {}
    for column in dict.fromkeys(state.cell.column for state in states):
        for seed in dict.fromkeys(state.cell.seed for state in states):
            found = {s.cell.row: mark(s) for s in states if (s.cell.column, s.cell.seed) == (column, seed)}
            for row in found.keys() - _usual(found, rows):
                if column not in differing.setdefault(row, []):
                    differing[row].append(column)
    yield from ((row, tuple(differing[row])) for row in rows if row in differing)


def _usual(found: Mapping[str, str | tuple[int, str]], rows: Sequence[str]) -> set[str]:
    """Return the rows with the mark that most have; of marks that as many have, the one of the first row."""
    in_order = [row for row in rows if row in found]
    counts = Counter(found[row] for row in in_order)
    return {row for row in in_order if found[row] == max(counts, key=lambda mark: counts[mark])}


def _samples(
    states: Sequence[CellState], row: str, column: str, trained: Mapping[int, tuple[int, str]]
) -> tuple[int, int] | None:
    """Return the number of training samples of a row and of most others, with the first seed for which they differ."""
    for seed in dict.fromkeys(state.cell.seed for state in states):
        found = {s.cell.row: trained[id(s)] for s in states if (s.cell.column, s.cell.seed) == (column, seed)}
        if row in found and row not in (usual := _usual(found, list(found))):
            return found[row][0], found[next(iter(usual))][0]
    return None


def _split_of(state: CellState) -> dict[str, np.ndarray]:
    file = (state.run or Path()) / "split.npz"
    try:
        return read_npz(file)
    except (OSError, ValueError) as error:
        remedy = f"restore it, or remove {state.cell.folder}, and dfl-study run trains the cell again"
        raise UserError(f"{file}: cannot be read ({reason(error)}); {remedy}") from error


def _trained_on(split: Mapping[str, np.ndarray]) -> tuple[int, str]:
    """Return how many samples all clients train on, and a hash of these."""
    digest = hashlib.sha256()
    for name in ("train_indices", "train_offsets"):
        digest.update(np.ascontiguousarray(split.get(name, np.empty(0))).tobytes())
    return len(split.get("train_indices", ())), digest.hexdigest()


def _begun_from(state: CellState) -> str:
    """Return what first models are drawn from, with the seed: the network, its precision and its initialisation."""
    config = state.cell.config
    model, trainer = config["model"], config["trainer"]
    return json.dumps([model["network"], model.get("init"), trainer.get("precision")], sort_keys=True)
