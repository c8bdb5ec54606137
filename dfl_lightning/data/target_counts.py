"""Counts of the clients' samples of each class or label, or in intervals of a numerical target."""

from __future__ import annotations

import numpy as np
import torch

from dfl_lightning.data.source import Source
from dfl_lightning.data.splits.split import Split

__all__ = ["DESCRIBING", "target_counts"]

DESCRIBING = ("train_counts", "target_edges", "test_counts")
"""Arrays of a split file that describe it and do not determine the split."""

INTERVALS = 12
"""Number of intervals of a numerical target, equally wide from the least to the greatest of all training samples."""

MOST = 1_000_000
"""Largest number of counts of all clients; a larger table is left out."""


def target_counts(source: Source, split: Split) -> dict[str, np.ndarray]:
    """Count the training samples of each client by their targets, and test samples by their classes.

    Args:
        source: the loaded data set.
        split: the samples of each client.

    Returns:
        `train_counts`, int32 [m, k]: numbers of training samples of k classes, by the names after the client's label
        map; of k labels; or in k intervals of the first column of the targets, whose bounds are `target_edges`, float64
        [k + 1], in the original unit. They are empty if targets are lines of tokens, or if there are more than `MOST`
        counts. `test_counts`, int32 [m, k]: numbers of test samples of k classes; empty if targets are not classes.
    """
    return {name: np.empty(0) for name in DESCRIBING} | _counted(source, split) | _counted_in_test(source, split)


def _counted_in_test(source: Source, split: Split) -> dict[str, np.ndarray]:
    """Count the test samples of each client and class, by the names after the client's label map."""
    clients, number = len(split.test), source.num_classes
    labels = source.test_labels if split.test_official else source.labels
    if labels is None or not source.has_classes or clients * number > MOST:
        return {}
    owners = np.repeat(np.arange(clients), [len(part) for part in split.test])
    values = labels.numpy()[np.concatenate(split.test).astype(np.int64)]
    names = split.label_map if split.test_label_map is None else split.test_label_map
    if names is not None:
        values = names[owners, values]
    counts = np.bincount(owners * number + values, minlength=clients * number).reshape(clients, number)
    return {"test_counts": counts.astype(np.int32)}


def _counted(source: Source, split: Split) -> dict[str, np.ndarray]:
    """Count the training samples of each client by class, label or interval of the target."""
    clients, labels = len(split.train), source.labels
    owners = np.repeat(np.arange(clients), [len(part) for part in split.train])
    indices = torch.from_numpy(np.concatenate(split.train).astype(np.int64))
    edges = np.empty(0)
    if labels.dtype == torch.bool:
        number = labels.shape[1]
        rows, values = np.nonzero(labels[indices].numpy()) if clients * number <= MOST else (owners[:0], owners[:0])
        owners = owners[rows]
    elif source.has_classes:
        number, values = source.num_classes, labels[indices].numpy()
        if split.label_map is not None:
            values = split.label_map[owners, values]
    elif labels.is_floating_point():
        first = labels.reshape(len(labels), -1)[indices, 0].double().numpy()
        edges = np.linspace(first.min(), first.max(), INTERVALS + 1)
        if not (np.diff(edges) > 0).all():
            return {}  # all targets have the same value
        number, values = INTERVALS, np.clip(np.searchsorted(edges, first, side="right") - 1, 0, INTERVALS - 1)
    else:
        return {}
    if clients * number > MOST:
        return {}
    counts = np.bincount(owners * number + values, minlength=clients * number).reshape(clients, number)
    return {"train_counts": counts.astype(np.int32), "target_edges": edges}
