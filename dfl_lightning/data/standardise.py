"""Standardisation of columns by their means and standard deviations over the clients' training samples only."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dfl_lightning.data.source import Source
from dfl_lightning.data.splits.split import Split
from dfl_lightning.utils.errors import UserError

__all__ = ["filled", "fit_columns", "standardised", "without_unseen"]

_ROUNDING = 1e-12
"""Share of a column's largest value below which its deviation is a rounding error."""


def fit_columns(source: Source, split: Split, indicators: int = 0) -> Split:
    """Return the split with means and deviations of the columns over the training rows of all clients together.

    If the split has been read from a file and contains them already, they are kept.

    Args:
        source: inputs float64 [N, d], whose categorical columns are not standardised; targets float64 [N, k], or
            classes or labels, which are not standardised.
        split: training rows of each client.
        indicators: number of the last input columns, of 0 and 1, that are not standardised.

    Raises:
        UserError: the split's means and deviations belong to other columns.
    """
    columns = {"input": source.images, "target": source.labels if source.labels.is_floating_point() else None}
    rows = np.concatenate(split.train)
    fitted: dict[str, Any] = {}
    for what, values in columns.items():
        if values is None:
            continue
        means, deviations = getattr(split, f"{what}_means"), getattr(split, f"{what}_deviations")
        if means is None or deviations is None:
            means, deviations = _fitted(values.numpy()[rows])
            if what == "input":
                for part in (slice(len(source.categories)), slice(len(means) - indicators, None)):
                    means[part], deviations[part] = 0.0, 1.0
        elif not len(means) == len(deviations) == values.shape[1] or not (deviations > 0).all():
            raise UserError(
                f"data.split: it standardises {len(means)} {what} columns by deviations that are above 0, and "
                f"{source.name} has {values.shape[1]}; give the split.npz of a run with these data"
            )
        fitted |= {f"{what}_means": means, f"{what}_deviations": deviations}
    return dataclasses.replace(split, **fitted)


def without_unseen(source: Source, split: Split) -> Source:
    """Return the data with category 0 instead of categories that no client trains on.

    Args:
        source: a data set whose categorical columns, if there are any, come first.
        split: training rows of each client.
    """
    if not source.categories:
        return source
    images, rows = source.images.clone(), torch.from_numpy(np.concatenate(split.train))
    for column in range(len(source.categories)):
        codes = images[:, column]
        images[:, column] = torch.where(torch.isin(codes, codes[rows].unique()), codes, 0.0)
    return dataclasses.replace(source, images=images)


def filled(source: Source, split: Split, name_of: Callable[[int], str], means: np.ndarray | None) -> Source:
    """Return the data with the mean of a column's training rows, of all clients together, instead of missing values.

    Args:
        source: inputs float64 [N, d], NaN where one is missing.
        split: training rows of each client.
        name_of: function that names a column for messages.
        means: mean of each column, if they are known; None computes them.

    Raises:
        UserError: a column with missing values has none in the training rows.
    """
    values = source.images.numpy()
    holes = np.isnan(values)
    if not holes.any():
        return source
    values, rows = values.copy(), np.concatenate(split.train)
    for column in np.flatnonzero(holes.any(0)):
        present = values[rows, column][~holes[rows, column]]
        if not len(present):
            raise UserError(
                f"data {source.name}: no client trains on a value of {name_of(int(column))}, so that it has no mean; "
                "leave it out by data.drop"
            )
        known = means is not None and len(means) == values.shape[1]
        values[holes[:, column], column] = means[column] if means is not None and known else present.mean()
    return dataclasses.replace(source, images=torch.from_numpy(values))


def standardised(source: Source, split: Split) -> Source:
    """Subtract the split's means from the columns, and divide them by its deviations; return the data as float32.

    Args:
        source: the data set before standardisation; see `fit_columns`.
        split: a split with means and deviations.
    """
    images = _scaled(source.images, split.input_means, split.input_deviations)
    if split.target_means is None or split.target_deviations is None:
        return dataclasses.replace(source, images=images)
    labels = _scaled(source.labels, split.target_means, split.target_deviations)
    scale, shift = torch.from_numpy(split.target_deviations), torch.from_numpy(split.target_means)
    return dataclasses.replace(source, images=images, labels=labels, target_scale=scale, target_shift=shift)


def _fitted(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Compute means and standard deviations of columns, float64 [d] each; the deviation of a constant column is 1."""
    means, deviations = values.mean(0), values.std(0)
    constant = deviations <= _ROUNDING * np.abs(values).max(0, initial=1e-300)
    return means, np.where(constant, 1.0, deviations)


def _scaled(values: Tensor, means: np.ndarray | None, deviations: np.ndarray | None) -> Tensor:
    return ((values - torch.from_numpy(means)) / torch.from_numpy(deviations)).float()
