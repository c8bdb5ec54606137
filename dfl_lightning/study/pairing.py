"""Whether the rows of a table differ in their methods only: same seed, same split, same first models."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from dfl_lightning.study.cell_state import CellState


def unpaired(states: Sequence[CellState], rows: Sequence[str]) -> Iterator[str]:
    """Sentences about rows whose cells have another split, or other first models, than the others of their column.

    Args:
        states: of the cells that are done.
        rows: in the order of the table; what most of the rows have is what the others differ from.
    """
    for what, mark in (("another split of the data", split_of), ("other first models", start_of)):
        differing: dict[str, list[str]] = {}
        for column in dict.fromkeys(state.cell.column for state in states):
            for seed in dict.fromkeys(state.cell.seed for state in states):
                found = {s.cell.row: mark(s) for s in states if (s.cell.column, s.cell.seed) == (column, seed)}
                marks = [found[row] for row in rows if row in found]
                common = max(marks, key=marks.count, default="")
                for row in found:
                    if found[row] != common and column not in differing.setdefault(row, []):
                        differing[row].append(column)
        for row in rows:
            if differing.get(row):
                yield f"{row} has {what} than the other rows of {', '.join(differing[row])}: no paired differences"


def split_of(state: CellState) -> str:
    """The images of each client, as a hash of the run's split.npz."""
    digest = hashlib.sha256()
    file = (state.run or Path()) / "split.npz"
    with np.load(file, allow_pickle=False) as arrays:
        for name in sorted(arrays.files):
            digest.update(name.encode() + str(arrays[name].shape).encode() + arrays[name].tobytes())
    return digest.hexdigest()


def start_of(state: CellState) -> str:
    """What the first models are drawn from, with the seed: the network, its precision and how it is initialised."""
    config = state.cell.config
    model, trainer = config["model"], config["trainer"]
    return json.dumps([model["network"], model.get("init"), trainer.get("precision")], sort_keys=True)
