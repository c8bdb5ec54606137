"""The file cells.csv: the row, column and seed of each folder of a study, for readers without the study file."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import dataclass
from pathlib import Path

from dfl_lightning.bench.study.plan import Plan
from dfl_lightning.utils.errors import UserError, reason
from dfl_lightning.utils.storage.files import write_atomically

NAME = "cells.csv"
HEAD = ("row", "column", "seed", "scale", "folder", "code")


@dataclass(frozen=True)
class CellEntry:
    """A line of cells.csv.

    Attributes:
        row: the method's name.
        column: the task's name.
        seed: of the run.
        scale: of the rounds, 0 to 1.
        folder: of the cell, below the study's.
        code: hashes of the user's own code, by module, as the study found it last.
    """

    row: str
    column: str
    seed: int
    scale: float
    folder: Path
    code: dict[str, str]


def write_cells(plan: Plan) -> None:
    """Write a plan's cells to cells.csv if the study's folder exists; keep the lines of other scales."""
    if not plan.folder.is_dir():
        return
    file = plan.folder / NAME
    before = read_cells(plan.folder) if file.is_file() else []
    entries = [entry for entry in before if entry.scale != plan.scale]
    for cell in plan.cells.values():
        folder = cell.folder.relative_to(plan.folder)
        entries.append(CellEntry(cell.row, cell.column, cell.seed, plan.scale, folder, cell.code))
    entries.sort(key=lambda entry: -entry.scale)
    if entries == before:
        return
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(HEAD)
    writer.writerows((e.row, e.column, e.seed, repr(e.scale), e.folder.as_posix(), _as_text(e.code)) for e in entries)
    write_atomically(file, lambda open_file: open_file.write(text.getvalue().encode()))


def read_cells(folder: Path) -> list[CellEntry]:
    """Read the list of cells in a study's folder.

    Raises:
        UserError: no study has been run there, or the file is damaged.
    """
    file = folder / NAME
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(
            f"{folder}: no {NAME} in there; give a study's folder, as in studies/<name>; if the file was removed, "
            "dfl-study status FILE writes it anew"
        ) from None
    except (OSError, ValueError) as error:
        raise UserError(f"{file}: cannot be read ({reason(error)})") from error
    head, *lines = list(csv.reader(io.StringIO(text))) or [[]]
    try:
        if tuple(head) != HEAD:
            raise ValueError(f"the first line is not {','.join(HEAD)}")
        return [
            CellEntry(row, column, int(seed), float(scale), Path(cell_folder), dict(json.loads(code or "{}")))
            for row, column, seed, scale, cell_folder, code in lines
        ]
    except ValueError as error:
        raise UserError(f"{file}: damaged ({error}); remove it, and dfl-study status FILE writes it anew") from error


def _as_text(code: dict[str, str]) -> str:
    return json.dumps(code, sort_keys=True) if code else ""
