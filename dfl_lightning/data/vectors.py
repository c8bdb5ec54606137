"""Tables of numbers: a CSV file, arrays in an npz file, or the one that comes with scikit-learn."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
from sklearn.datasets import load_diabetes

from dfl_lightning.data.datamodule import FederatedData
from dfl_lightning.data.partitions import ByWriter, Partition
from dfl_lightning.data.source import Source
from dfl_lightning.utils.errors import UserError, reason

__all__ = ["Vectors"]


@dataclass(frozen=True)
class FileContent:
    """What a file says.

    Args:
        inputs: [N, d].
        targets: numbers [N] or [N, k], or names of classes [N].
        owners: the client of each row, [N] of any type; None where the file does not say.
    """

    inputs: np.ndarray
    targets: np.ndarray
    owners: np.ndarray | None = None


class Vectors(FederatedData):
    """Rows of numbers with a number, several numbers or a class to be predicted from each.

    Inputs, and numbers to be predicted, are standardised column by column: mean 0 and standard deviation 1 over all
    rows. Errors are reported in the original unit all the same. A constant column becomes zeros.

    Args:
        file: a CSV file with a line of column names, or an npz file with arrays x [N, d] and y [N] or [N, k]; null
            means scikit-learn's diabetes data, 442 patients with 10 columns and the disease's progression after one
            year (Efron et al. 2004, Least Angle Regression).
        target: columns of the CSV file that are predicted, one name or several.
        client: column of the CSV file, or array [N] of the npz file, that names the client of each row; the partition
            is then `ByWriter`, unless another one is given. Null: the file does not say.
        classes: whether the target is the name of a class.
        standardise: whether columns are standardised.
        test_fraction: see `FederatedData`.
        partition: see `FederatedData`.
        **kwargs: everything else of `FederatedData`.
    """

    noun = "row"

    def __init__(
        self,
        file: str | None = None,
        target: str | list[str] | None = None,
        client: str | None = None,
        classes: bool = False,
        standardise: bool = True,
        test_fraction: float | None = 0.25,
        partition: Partition | None = None,
        **kwargs: Any,
    ) -> None:
        if file is None and (target is not None or client is not None or classes):
            raise UserError("data Vectors: target, client and classes describe a file; name it by data.file")
        if partition is None and client is not None:
            partition = ByWriter(min_samples=2)
        super().__init__(test_fraction=test_fraction, partition=partition, **kwargs)
        self.file, self.client, self.classes, self.standardise = file, client, classes, standardise
        self.target = [target] if isinstance(target, str) else target

    def load(self) -> Source:
        """Read the file: inputs float32 [N, d], targets float32 [N, k] or classes int64 [N]."""
        name = "diabetes" if self.file is None else Path(self.file).name
        table = self._read()
        for what, values in (("inputs", table.inputs), *([] if self.classes else [("targets", table.targets)])):
            broken = np.flatnonzero(~np.isfinite(values.reshape(len(values), -1)).all(1))
            if len(broken):
                raise UserError(
                    f"data Vectors: {name} has NaN or infinity among the {what} of row {broken[0]} (counted from 0); "
                    "repair or remove it"
                )
        inputs, _, _ = _standardised(table.inputs, self.standardise)
        names: tuple[str, ...] = ()
        writers = None
        if table.owners is not None:
            found, numbers = np.unique(table.owners, return_inverse=True)
            names, writers = tuple(map(str, found)), torch.from_numpy(numbers.astype(np.int64))
        about: dict[str, Any] = {"writers": writers, "writer_names": names}
        images = torch.from_numpy(inputs.astype(np.float32))
        if self.classes:
            classes, numbers = np.unique(table.targets, return_inverse=True)
            labels = torch.from_numpy(numbers.astype(np.int64))
            return Source(name, images, labels, len(classes), **about)
        targets, scale, shift = _standardised(table.targets.reshape(len(inputs), -1), self.standardise)
        if self.standardise:
            about |= {"target_scale": torch.from_numpy(scale), "target_shift": torch.from_numpy(shift)}
        return Source(name, images, torch.from_numpy(targets.astype(np.float32)), 0, **about)

    def _read(self) -> FileContent:
        if self.file is None:
            return FileContent(*load_diabetes(return_X_y=True, scaled=False))
        path = Path(self.file)
        readers = {".csv": self._read_csv, ".npz": self._read_npz}
        if path.suffix not in readers:
            raise UserError(f"data Vectors: {path} is neither a .csv nor an .npz file; convert it to one of them")
        try:
            table = readers[path.suffix](path)
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise UserError(f"data Vectors: {path} cannot be read ({reason(error)}); check data.file") from error
        if len(table.inputs) == 0:
            raise UserError(f"data Vectors: {path} has no rows; give a file with some")
        return table

    def _read_csv(self, path: Path) -> FileContent:
        with path.open(newline="", encoding="utf-8") as file:
            header, *rows = list(csv.reader(file)) or [[]]
        if not self.target:
            raise UserError(f"data Vectors: data.target names the columns of {path} that are predicted; set it")
        wanted = [*self.target, *([self.client] if self.client is not None else [])]
        if self.classes and len(self.target) > 1:
            raise UserError(f"data Vectors: classes are in one column, and data.target names {len(self.target)}")
        for column in wanted:
            if header.count(column) != 1:
                raise UserError(
                    f"data Vectors: {path} has {header.count(column)} columns '{column}' (it has {', '.join(header)}); "
                    "name one of them"
                )
        for line, row in enumerate(rows, start=2):
            if len(row) != len(header):
                raise UserError(f"data Vectors: {path}, line {line}: {len(row)} values for {len(header)} columns")
        at = {column: header.index(column) for column in wanted}
        inputs = [place for place, column in enumerate(header) if column not in wanted]
        if not inputs:
            raise UserError(
                f"data Vectors: {path} has no column beside target and client; there is nothing to learn from"
            )
        targets = [at[column] for column in self.target]
        names = np.array([row[targets[0]] for row in rows])
        predicted = names if self.classes else _numbers(path, header, rows, targets)
        owners = None if self.client is None else np.array([row[at[self.client]] for row in rows])
        return FileContent(_numbers(path, header, rows, inputs), predicted, owners)

    def _read_npz(self, path: Path) -> FileContent:
        if self.target:
            raise UserError(
                "data Vectors: data.target names columns of a CSV file; an npz file's targets are its array y"
            )
        wanted = ["x", "y", *([self.client] if self.client is not None else [])]
        try:
            with np.load(path, allow_pickle=False) as file:
                arrays = {name: file[name] for name in wanted if name in file}
        except (ValueError, BadZipFile) as error:
            raise UserError(f"data Vectors: {path} cannot be read ({reason(error)}); save it by numpy.savez") from error
        for name in wanted:
            if name not in arrays:
                raise UserError(f"data Vectors: {path} has no array {name}; save it with one")
        x, y = arrays["x"], arrays["y"]
        if x.ndim != 2 or y.ndim not in (1, 2) or len(y) != len(x) or (self.classes and y.ndim != 1):
            raise UserError(
                f"data Vectors: {path} has x {list(x.shape)} and y {list(y.shape)}; they are [N, d], and [N] or [N, k]"
            )
        for name, array in (("x", x), *([] if self.classes else [("y", y)])):
            if array.dtype.kind not in "fiu":
                raise UserError(f"data Vectors: {path}: {name} is {array.dtype}; it must be numbers")
        owners = None if self.client is None else arrays[self.client]
        if owners is not None and owners.shape != (len(x),):
            raise UserError(f"data Vectors: {path}: {self.client} is {list(owners.shape)} for {len(x)} rows; give [N]")
        return FileContent(x, y, owners)


def _numbers(path: Path, header: Sequence[str], rows: Sequence[Sequence[str]], columns: Sequence[int]) -> np.ndarray:
    """Some columns as float64 [N, columns]."""
    found = np.empty((len(rows), len(columns)))
    for line, row in enumerate(rows):
        for place, column in enumerate(columns):
            try:
                found[line, place] = float(row[column])
            except ValueError:
                raise UserError(
                    f"data Vectors: {path}, line {line + 2}: {header[column]} is '{row[column][:40]}', not a number; "
                    "repair the line, or remove the column"
                ) from None
    return found


def _standardised(values: np.ndarray, wanted: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Columns with mean 0 and standard deviation 1, float64 [N, d], with the deviations and means that undo it."""
    values = values.astype(np.float64)
    if not wanted:
        return values, np.ones(values.shape[1]), np.zeros(values.shape[1])
    mean, deviation = values.mean(0), values.std(0)
    deviation = np.where(deviation > 1e-12 * np.abs(values).max(0, initial=1e-300), deviation, 1.0)
    return (values - mean) / deviation, deviation, mean
