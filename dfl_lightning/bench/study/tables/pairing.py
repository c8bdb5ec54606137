"""The check that the rows of a table differ in their methods only: same seed, same data, same first models.

Cells are paired by the same rule as in reports, `stats.tested`: the same seed and the same test data.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dfl_lightning.bench.stats.tested import tested_data
from dfl_lightning.bench.study.cells.cell_state import CellState
from dfl_lightning.utils.errors import UserError, reason
from dfl_lightning.utils.storage.files import read_npz

TESTED, TRAINED, BEGUN = "test data", "training data", "first models"
"""The kinds of differences between rows apart from the method. Only other test data prevent a comparison. Other numbers
of training samples are a condition like others, see `unequal`."""


@dataclass(frozen=True)
class Unlike:
    """A row that differs from the others of its columns in more than its method.

    Attributes:
        row: its name.
        columns: in which it does.
        what: `TESTED`, `TRAINED` or `BEGUN`.
    """

    row: str
    columns: tuple[str, ...]
    what: str

    @property
    def is_compared(self) -> bool:
        """True if the row has paired differences to the other rows."""
        return self.what != TESTED


def unlike(states: Sequence[CellState], rows: Sequence[str]) -> Iterator[Unlike]:
    """Find the rows whose cells have other data, or other first models, than most other rows of their column.

    Args:
        states: states of the cells that are done.
        rows: names of the rows, in the order of the table.

    Raises:
        UserError: the split file of a run is missing or damaged.
    """
    splits = {id(state): _split_of(state) for state in states}
    tested = {id(s): tested_data(splits[id(s)]) or str(s.run) for s in states}  # unknown data differ from all others
    trained = {id(s): _trained_on(splits[id(s)]) for s in states}
    marks: dict[str, Callable[[CellState], str]] = {
        TESTED: lambda state: tested[id(state)],
        TRAINED: lambda state: trained[id(state)],
        BEGUN: _begun_from,
    }
    for what, mark in marks.items():
        yield from (Unlike(row, columns, what) for row, columns in _apart(states, rows, mark))


def sentences(apart: Sequence[Unlike]) -> Iterator[str]:
    """Describe what rows differ in for below a table; rows with the same difference share a sentence."""
    for columns, what in dict.fromkeys((u.columns, u.what) for u in apart):
        names = ", ".join(u.row for u in apart if (u.columns, u.what) == (columns, what))
        others = f"the other rows of {', '.join(columns)}"
        if what == TESTED:
            yield f"tested on other samples than {others}: {names}; no paired differences"
        elif what == TRAINED:
            yield f"clients train on other samples than those of {others}: {names}"
        else:
            yield f"other first models than {others}: {names}; differences to them are paired by the data only"


def _apart(
    states: Sequence[CellState], rows: Sequence[str], mark: Callable[[CellState], str]
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the rows with a cell whose mark is not the most common of its column and seed, with these columns."""
    differing: dict[str, list[str]] = {}
    for column in dict.fromkeys(state.cell.column for state in states):
        for seed in dict.fromkeys(state.cell.seed for state in states):
            found = {s.cell.row: mark(s) for s in states if (s.cell.column, s.cell.seed) == (column, seed)}
            marks = [found[row] for row in rows if row in found]
            common = max(marks, key=marks.count, default="")
            for row in found:
                if found[row] != common and column not in differing.setdefault(row, []):
                    differing[row].append(column)
    yield from ((row, tuple(differing[row])) for row in rows if differing.get(row))


def _split_of(state: CellState) -> dict[str, np.ndarray]:
    file = (state.run or Path()) / "split.npz"
    try:
        return read_npz(file)
    except (OSError, ValueError) as error:
        remedy = f"restore it, or remove {state.cell.folder}, and dfl-study run trains the cell again"
        raise UserError(f"{file}: cannot be read ({reason(error)}); {remedy}") from error


def _trained_on(split: Mapping[str, np.ndarray]) -> str:
    """Hash the training samples of all clients, which differ if only one method has validation data, for example."""
    digest = hashlib.sha256()
    for name in ("train_indices", "train_offsets"):
        digest.update(np.ascontiguousarray(split.get(name, np.empty(0))).tobytes())
    return digest.hexdigest()


def _begun_from(state: CellState) -> str:
    """Return what determines the first models, apart from the seed: the network, its precision and initialisation."""
    config = state.cell.config
    model, trainer = config["model"], config["trainer"]
    return json.dumps([model["network"], model.get("init"), trainer.get("precision")], sort_keys=True)
