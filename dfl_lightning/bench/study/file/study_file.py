"""A study file: rows, columns and seeds of a table, and what has been published about it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dfl_lightning.bench.study.file.exclude import Exclusion, read_exclude
from dfl_lightning.bench.study.file.tune_block import Tune, read_tune
from dfl_lightning.bench.study.tables.measures.measure import Measure, read_measure
from dfl_lightning.utils.errors import UserError, nearest
from dfl_lightning.utils.storage.shipped_files import find
from dfl_lightning.utils.storage.yaml_files import read_config

KIND = "configs/studies"
"""The folder of the shipped study files."""

KEYS = (
    *("name", "base", "rows", "columns", "cells", "seeds", "exclude", "score", "number", "published"),
    *("published_numbers", "note", "tune"),
)
MISSING = "not_in_library"
"""Key of a row or column whose method or data the library lacks; its value says what is missing."""

Layer = Mapping[str, Any]
"""Settings of a row, a column or a cell, dotted or nested; `config` names the config file that they modify."""


@dataclass(frozen=True)
class Published:
    """A number that a paper prints, in the unit of the table: an accuracy in percent.

    Attributes:
        mean: the number.
        sd: its standard deviation, where the paper gives one.
    """

    mean: float
    sd: float | None = None


@dataclass(frozen=True)
class Study:
    """The content of a study file.

    Attributes:
        name: of the study, and of its folder.
        path: the file.
        title: the first comment line of the file.
        base: settings of every cell.
        rows: settings of each method, by its name in the table.
        columns: settings of each task.
        cells: settings of single cells, by row and column; None: there is no such cell.
        seeds: the replications.
        measure: what is compared.
        published: by row and column.
        published_numbers: what is published about other columns of metrics.csv, by its column, then by row and column.
        note: a sentence for every caption.
        tune: options to be tuned before the table is made; None: all options are given.
        exclude: cells that are left out of the table.
    """

    name: str
    path: Path
    title: str
    base: Layer
    rows: dict[str, Layer]
    columns: dict[str, Layer]
    cells: dict[str, dict[str, Layer | None]]
    seeds: list[int]
    measure: Measure
    published: dict[str, dict[str, Published]] = field(default_factory=dict)
    published_numbers: dict[str, dict[str, dict[str, Published]]] = field(default_factory=dict)
    note: str = ""
    tune: Tune | None = None
    exclude: tuple[Exclusion, ...] = ()

    def pairs(self) -> list[tuple[str, str]]:
        """Return the row and column of every place of the table that has cells."""
        return [(row, column) for row in self.rows for column in self.columns if not self.is_left_out(row, column)]

    def require_tune(self) -> Tune:
        """Return the block `tune`, or raise if there is none.

        Raises:
            UserError: the file has none.
        """
        if self.tune is None:
            raise UserError(f"{self.path}: there is no block tune in it; docs/studies.md says what it may hold")
        return self.tune

    def is_left_out(self, row: str, column: str) -> bool:
        """Return True if the key `cells` sets this row and column to null, so that the place has no cells."""
        return column in self.cells.get(row, {}) and self.cells[row][column] is None

    def is_excluded(self, row: str, column: str, seed: int) -> bool:
        """Return True if an entry of `exclude` covers the cell."""
        return any(entry.covers(row, column, seed) for entry in self.exclude)

    def missing(self, row: str, column: str) -> str:
        """Return what the library lacks for this row or column; empty if nothing."""
        return str(self.rows[row].get(MISSING) or self.columns[column].get(MISSING) or "")

    def published_as(self, measure: Measure) -> dict[str, dict[str, Published]]:
        """Return what is published about a measure, by row and column; empty if nothing is.

        Numbers of columns of metrics.csv are those of the last round that has them.
        """
        if measure.is_like(self.measure):
            return self.published
        others = (numbers for name, numbers in self.published_numbers.items() if measure.is_like(Measure(name, "last")))
        return next(others, {})

    def measures_of(self, row: str, column: str) -> list[Measure]:
        """Return what is compared in a place of the table: the study's measure, and columns with published numbers."""
        others = (name for name, numbers in self.published_numbers.items() if column in numbers.get(row, {}))
        return [self.measure, *(Measure(name, "last") for name in others)]

    def layers(self, row: str, column: str) -> list[Layer]:
        """Return the settings of a row and column; later ones override earlier ones."""
        return [self.base, self.columns[column], self.rows[row], self.cells.get(row, {}).get(column) or {}]


def read_study_file(name: str | Path) -> Study:
    """Read a study file by its path, or by the name of a shipped one.

    Raises:
        UserError: there is no such file, a key is unknown, or a value is not valid.
    """
    path = find(KIND, name)
    content = read_config(path)
    for key in content:
        if key not in KEYS:
            raise UserError(f"{path}: unknown key '{key}'{nearest(str(key), KEYS)} (keys: {', '.join(KEYS)})")
    for key in ("rows", "columns"):
        if key not in content:
            raise UserError(f"{path}: a study needs {key}, a mapping of names to settings")
    rows = _layers(path, "rows", content["rows"])
    columns = _layers(path, "columns", content["columns"])
    seeds = _seeds(path, content.get("seeds", [0]))
    return Study(
        name=_name(path, content.get("name", path.stem)),
        path=path,
        title=_title(path),
        base=_layer(path, "base", content.get("base")),
        rows=rows,
        columns=columns,
        cells=_cells(path, content.get("cells") or {}, rows, columns),
        seeds=seeds,
        measure=read_measure(content, str(path)),
        published=_published(path, "published", content.get("published") or {}, rows, columns),
        published_numbers=_published_numbers(path, content.get("published_numbers") or {}, rows, columns),
        note=str(content.get("note") or ""),
        tune=read_tune(path, content.get("tune"), rows, columns, seeds),
        exclude=read_exclude(path, content.get("exclude"), rows, columns),
    )


def _name(path: Path, name: Any) -> str:
    if not isinstance(name, str) or not re.fullmatch(r"[\w.+-]*\w[\w.+-]*", name):
        raise UserError(f"{path}: name '{name}' becomes a folder; use letters, digits, '-', '_' and '.'")
    return name


def _title(path: Path) -> str:
    first = path.read_text(encoding="utf-8").partition("\n")[0]
    return first.lstrip("# ").strip() if first.startswith("#") else ""


def _layers(path: Path, key: str, content: Any) -> dict[str, Layer]:
    if not isinstance(content, dict) or not content:
        raise UserError(f"{path}: {key} is a mapping of names to settings, with one entry or more")
    return {str(name): _layer(path, f"{key}: {name}", layer) for name, layer in content.items()}


def _layer(path: Path, where: str, content: Any) -> Layer:
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise UserError(f"{path}: {where}: settings are a mapping such as {{selection.k: 5}}, not {content!r}")
    return {str(key): value for key, value in content.items()}


def _cells(
    path: Path, content: Any, rows: Mapping[str, Layer], columns: Mapping[str, Layer]
) -> dict[str, dict[str, Layer | None]]:
    found: dict[str, dict[str, Layer | None]] = {}
    for row, column, layer in _by_place(path, "cells", content, rows, columns):
        found.setdefault(row, {})[column] = None if layer is None else _layer(path, f"cells: {row}: {column}", layer)
    return found


def _published_numbers(
    path: Path, content: Any, rows: Mapping[str, Layer], columns: Mapping[str, Layer]
) -> dict[str, dict[str, dict[str, Published]]]:
    key = "published_numbers"
    if not isinstance(content, dict):
        raise UserError(
            f"{path}: {key} is a mapping of columns of metrics.csv to what published holds, not {content!r}"
        )
    return {str(name): _published(path, f"{key}: {name}", of, rows, columns) for name, of in content.items()}


def _published(
    path: Path, key: str, content: Any, rows: Mapping[str, Layer], columns: Mapping[str, Layer]
) -> dict[str, dict[str, Published]]:
    found: dict[str, dict[str, Published]] = {}
    for row, column, value in _by_place(path, key, content, rows, columns):
        numbers = value if isinstance(value, list) else [value]
        valid = all(isinstance(number, (int, float)) and not isinstance(number, bool) for number in numbers)
        if not valid or len(numbers) not in (1, 2):
            raise UserError(
                f"{path}: {key}: {row}: {column}: {value!r} is not a number (accuracies: in percent); give 84.3, "
                "or [84.3, 0.4] with its standard deviation"
            )
        found.setdefault(row, {})[column] = Published(*(float(number) for number in numbers))
    return found


def _by_place(
    path: Path, key: str, content: Any, rows: Mapping[str, Layer], columns: Mapping[str, Layer]
) -> list[tuple[str, str, Any]]:
    """List row, column and value of a mapping of rows to columns to values; raise if a name is unknown."""
    found = []
    if not isinstance(content, dict):
        raise UserError(f"{path}: {key} is a mapping of rows to columns to values")
    for row, inner in content.items():
        if str(row) not in rows:
            raise UserError(f"{path}: {key}: there is no row '{row}'{nearest(str(row), rows)}")
        if not isinstance(inner, dict):
            raise UserError(f"{path}: {key}: {row} is a mapping of columns to values")
        for column, value in inner.items():
            if str(column) not in columns:
                raise UserError(f"{path}: {key}: {row}: there is no column '{column}'{nearest(str(column), columns)}")
            found.append((str(row), str(column), value))
    return found


def _seeds(path: Path, content: Any) -> list[int]:
    valid = isinstance(content, list) and content and all(type(seed) is int and 0 <= seed < 2**32 for seed in content)
    if not valid or len(set(content)) < len(content):
        raise UserError(f"{path}: seeds is a list of different whole numbers such as [0, 1, 2], not {content!r}")
    return list(content)
