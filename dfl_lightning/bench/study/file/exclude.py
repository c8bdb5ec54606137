"""The key `exclude` of a study file: cells that are left out of the table, each with the reason."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dfl_lightning.utils.errors import UserError, nearest

KEYS = ("row", "column", "seed", "why")


@dataclass(frozen=True)
class Exclusion:
    """An entry of `exclude`.

    Attributes:
        row: of the table.
        column: of the table; None: all columns.
        seed: of the run; None: all seeds.
        why: the reason, which every caption repeats.
    """

    row: str
    column: str | None
    seed: int | None
    why: str

    def covers(self, row: str, column: str, seed: int) -> bool:
        """Return True if this entry excludes the cell.

        Examples:
            >>> Exclusion("Gossip", None, 3, "it diverged").covers("Gossip", "IID", 3)
            True
        """
        return self.row == row and self.column in (None, column) and self.seed in (None, seed)

    @property
    def place(self) -> str:
        """The excluded cells in words."""
        column = "all columns" if self.column is None else self.column
        return f"{self.row}, {column}, {'all seeds' if self.seed is None else f'seed {self.seed}'}"


def read_exclude(
    path: Path, content: Any, rows: Mapping[str, Any], columns: Mapping[str, Any]
) -> tuple[Exclusion, ...]:
    """Read the key `exclude` of a study file, whose value is `content`; None if the file does not have it.

    `require_cells` checks the seeds later, since `dfl-study add-seeds` may have added some.

    Raises:
        UserError: an entry has no row or no reason, or names what the study does not have.
    """
    if content is None:
        return ()
    if not isinstance(content, list):
        raise UserError(f"{path}: exclude is a list such as [{{row: A, seed: 3, why: the disk was full}}]")
    return tuple(_entry(path, entry, rows, columns) for entry in content)


def _entry(path: Path, entry: Any, rows: Mapping[str, Any], columns: Mapping[str, Any]) -> Exclusion:
    if not isinstance(entry, Mapping) or "row" not in entry:
        raise UserError(f"{path}: exclude: {entry!r} names no row; write {{row: A, seed: 3, why: the disk was full}}")
    for key in entry:
        if key not in KEYS:
            raise UserError(f"{path}: exclude: unknown key '{key}'{nearest(str(key), KEYS)} (keys: {', '.join(KEYS)})")
    row, column, seed, why = (entry.get(key) for key in KEYS)
    if str(row) not in rows:
        raise UserError(f"{path}: exclude: there is no row '{row}'{nearest(str(row), rows)}")
    if column is not None and str(column) not in columns:
        raise UserError(f"{path}: exclude: {row}: there is no column '{column}'{nearest(str(column), columns)}")
    if seed is not None and type(seed) is not int:
        raise UserError(f"{path}: exclude: {row}: seed is one whole number, not {seed!r}; make an entry for each seed")
    if not isinstance(why, str) or not why.strip():
        raise UserError(f"{path}: exclude: {row}: give the reason as why, which every caption repeats")
    return Exclusion(str(row), None if column is None else str(column), seed, " ".join(why.split()))


def require_cells(
    path: Path, entries: Sequence[Exclusion], cells: Container[tuple[str, str, int]], columns: Sequence[str],
    seeds: Sequence[int],
) -> None:  # fmt: skip
    """Raise if an entry excludes no cell of the study.

    Args:
        path: study file, for messages.
        entries: entries of `exclude`.
        cells: row, column and seed of all cells, the excluded ones included.
        columns: names of all columns.
        seeds: all seeds, the added ones included.

    Raises:
        UserError: an entry names a seed or a cell that the study does not have.
    """
    for entry in entries:
        if entry.seed is not None and entry.seed not in seeds:
            known = ", ".join(map(str, seeds))
            raise UserError(f"{path}: exclude: {entry.row}: there is no seed {entry.seed} (seeds: {known})")
        if not any((entry.row, column, seed) in cells and entry.covers(entry.row, column, seed)
                   for column in columns for seed in seeds):  # fmt: skip
            raise UserError(f"{path}: exclude: the study has no cell {entry.place} anyway; remove the entry")


def sentences(entries: Sequence[Exclusion]) -> Iterator[str]:
    """Yield a sentence for each reason, which names the cells that are excluded for it."""
    by_reason: dict[str, list[str]] = {}
    for entry in entries:
        by_reason.setdefault(entry.why, []).append(entry.place)
    for why, places in by_reason.items():
        yield f"excluded: {'; '.join(dict.fromkeys(places))}: {why}"


def of_place(entries: Sequence[Exclusion], row: str, column: str) -> str:
    """Describe the exclusions of a row and column: their seeds and reasons; empty if there are none."""
    exclusions = [entry for entry in entries if entry.row == row and entry.column in (None, column)]
    return "; ".join(f"{'all seeds' if e.seed is None else f'seed {e.seed}'}: {e.why}" for e in exclusions)
