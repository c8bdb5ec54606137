"""Whether the rows of a table differ in their methods only: same seed, same split, same first models."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dfl_lightning.data.target_counts import DESCRIBING
from dfl_lightning.study.cell_state import CellState
from dfl_lightning.utils.errors import UserError, reason
from dfl_lightning.utils.files import read_npz


@dataclass(frozen=True)
class Unlike:
    """A row that differs from the others of its columns in more than its method.

    Attributes:
        row: its name.
        columns: in which it does.
        in_split: whether its clients have other samples, so that it is not compared; else its first models differ.
    """

    row: str
    columns: list[str]
    in_split: bool


def unlike(states: Sequence[CellState], rows: Sequence[str]) -> Iterator[Unlike]:
    """Rows whose cells have another split, or other first models, than the others of their column.

    Args:
        states: of the cells that are done.
        rows: in the order of the table; what most of the rows have is what the others differ from.
    """
    for mark in (split_of, start_of):
        differing: dict[str, list[str]] = {}
        for column in dict.fromkeys(state.cell.column for state in states):
            for seed in dict.fromkeys(state.cell.seed for state in states):
                found = {s.cell.row: mark(s) for s in states if (s.cell.column, s.cell.seed) == (column, seed)}
                marks = [found[row] for row in rows if row in found]
                common = max(marks, key=marks.count, default="")
                for row in found:
                    if found[row] != common and column not in differing.setdefault(row, []):
                        differing[row].append(column)
        yield from (Unlike(row, differing[row], mark is split_of) for row in rows if differing.get(row))


def sentences(apart: Sequence[Unlike]) -> Iterator[str]:
    """What to say below a table, once for the rows of which it is the same.

    Args:
        apart: rows that differ in more than their method.
    """
    for columns, in_split in dict.fromkeys((tuple(u.columns), u.in_split) for u in apart):
        rows = [u.row for u in apart if (tuple(u.columns), u.in_split) == (columns, in_split)]
        what = "another split of the data" if in_split else "other first models"
        so = "no paired differences" if in_split else "differences to them are paired by the split only"
        yield f"{what} than the other rows of {', '.join(columns)}: {', '.join(rows)}; {so}"


def split_of(state: CellState) -> str:
    """The samples of each client, as a hash of the run's split.npz.

    Raises:
        UserError: the file is missing or damaged.
    """
    digest = hashlib.sha256()
    file = (state.run or Path()) / "split.npz"
    try:
        arrays = read_npz(file)
    except (OSError, ValueError) as error:
        remedy = f"restore it, or remove {state.cell.folder}, and dfl-study run trains the cell again"
        raise UserError(f"{file}: cannot be read ({reason(error)}); {remedy}") from error
    for name in sorted(set(arrays) - set(DESCRIBING)):
        digest.update(name.encode() + str(arrays[name].shape).encode() + arrays[name].tobytes())
    return digest.hexdigest()


def start_of(state: CellState) -> str:
    """What the first models are drawn from, with the seed: the network, its precision and how it is initialised."""
    config = state.cell.config
    model, trainer = config["model"], config["trainer"]
    return json.dumps([model["network"], model.get("init"), trainer.get("precision")], sort_keys=True)
