"""The inputs, targets and clients of a table in an npz file."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from dfl_lightning.data.readers.arrays import read_arrays
from dfl_lightning.data.readers.columns import is_missing, refuse_merged
from dfl_lightning.data.readers.table_layout import (
    TableOptions,
    VectorTable,
    one_of_each,
    refuse_empty_names,
    rows_with_all,
)
from dfl_lightning.utils.errors import UserError

__all__ = ["of_arrays"]


def of_arrays(path: Path, where: str, layout: TableOptions) -> VectorTable:
    """Read the arrays x and y of an npz file, and that which names the clients.

    Args:
        path: the .npz file.
        where: name of the data set and the file, for messages.
        layout: what the arrays mean.

    Raises:
        MissingData: the file does not exist.
        UserError: it cannot be read, or its arrays have other shapes or types, or lack values.
    """
    client, kind = layout.client, layout.kind
    arrays = read_arrays(path, "Vectors", ["x", "y", *([client] if client is not None else [])], "save it with one")
    x, y, owners = arrays["x"], arrays["y"], None if client is None else arrays[client]
    if kind == "classes" and y.ndim == 2 and len(y):
        y = _squeezed(y, where)
    if x.ndim != 2 or y.ndim not in (1, 2) or len(y) != len(x):
        raise UserError(f"{where} has x {list(x.shape)} and y {list(y.shape)}; they are [N, d], and [N] or [N, k]")
    for name, array in (("x", x), *([] if kind == "classes" else [("y", y)])):
        if array.dtype.kind not in ("fiub" if (name, kind) == ("y", "labels") else "fiu"):
            raise UserError(f"{where}: {name} is {array.dtype}; it must be numbers")
        refuse_merged(array, f"{where}: {name}")
    if owners is not None and owners.shape != (len(x),):
        raise UserError(f"{where}: {client} is {list(owners.shape)} for {len(x)} rows; give [N]")
    if not len(x):
        raise UserError(f"{where} has no rows; give a file with some")
    x = x.astype(np.float64)
    empty = np.isnan(x)
    remarks: list[str] = []
    if layout.missing == "refuse":
        if empty.any():
            row, column = (int(index[0]) for index in np.nonzero(empty))
            raise UserError(
                f"{where}: {int(empty.sum())} of {empty.size} numbers of x are NaN, the first in row {row}, column "
                f"{column} (counted from 0); if that means missing, set data.missing to mean, indicator or drop"
            )
    else:
        unusable = [is_missing(names, names=True) for names in (owners, y) if names is not None and names.ndim == 1]
        unusable += [np.isnan(y).any(1)] if y.ndim == 2 and y.dtype.kind == "f" else []
        unusable += [empty.any(1)] if layout.missing == "drop" else []
        kept = rows_with_all(unusable or [np.zeros(len(x), bool)], where, layout, remarks)
        x, y, empty, owners = x[kept], y[kept], empty[kept], None if owners is None else owners[kept]
    if kind == "classes":
        refuse_empty_names(where, "y", y, None)
    if owners is not None:
        refuse_empty_names(where, str(client), owners, None)
    holes = empty[:, empty.any(0)] if layout.missing == "indicator" else empty[:, :0]
    inputs = np.column_stack([x, holes.astype(np.float64)])
    return VectorTable(path.name, inputs, y, owners, kind, indicators=holes.shape[1], remarks=remarks)


def _squeezed(y: np.ndarray, where: str) -> np.ndarray:
    """Convert classes in one column, [N, 1], or one-hot, [N, C], to classes, [N]."""
    classes = y[:, 0] if y.shape[1] == 1 else one_of_each(y)
    if classes is None:
        raise UserError(
            f"{where}: y is {list(y.shape)}, and classes are [N], [N, 1], or one-hot [N, C] with a single 1 in each "
            "row and 0 elsewhere; for several labels a row set labels: true instead of classes"
        )
    return classes
