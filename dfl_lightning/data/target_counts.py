"""Counts of what clients train and are tested on: samples of each class or label, or in intervals of the target."""

from __future__ import annotations

import numpy as np
import torch

from dfl_lightning.data.source import Source
from dfl_lightning.data.splits.split import Split

__all__ = ["DESCRIBING", "target_counts"]

DESCRIBING = ("train_counts", "target_edges", "test_counts")
"""Of a split file: they describe it, and nothing is divided by them."""

INTERVALS = 12
"""Of a target that is a number: equally wide, from the least to the greatest that any client trains on."""

MOST = 1_000_000
"""Counts of all clients; a table that would be larger is left out."""


def target_counts(source: Source, split: Split) -> dict[str, np.ndarray]:
    """Count the training samples of each client, and of classes the test samples.

    Args:
        source: the data set as it was loaded.
        split: who trains on which of its samples.

    Returns:
        `train_counts`, int32 [m, k]: of the k classes by the client's own names, of the k labels where they hold, or
        in k intervals of the first column of the targets, whose `target_edges`, float64 [k + 1], are in the original
        unit. Empty where targets are lines of tokens, or where there are more than `MOST` counts. `test_counts`, int32
        [m, k], are the same of the k classes among the test samples; empty where targets are not classes.
    """
    return {name: np.empty(0) for name in DESCRIBING} | _counted(source, split) | _counted_in_test(source, split)


def _counted_in_test(source: Source, split: Split) -> dict[str, np.ndarray]:
    """Count the samples of each class among the test samples of each client, by the client's own names."""
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
    clients, labels = len(split.train), source.labels
    owners = np.repeat(np.arange(clients), [len(part) for part in split.train])
    places = torch.from_numpy(np.concatenate(split.train).astype(np.int64))
    edges = np.empty(0)
    if labels.dtype == torch.bool:
        number = labels.shape[1]
        rows, values = np.nonzero(labels[places].numpy()) if clients * number <= MOST else (owners[:0], owners[:0])
        owners = owners[rows]
    elif source.has_classes:
        number, values = source.num_classes, labels[places].numpy()
        if split.label_map is not None:
            values = split.label_map[owners, values]
    elif labels.is_floating_point():
        first = labels.reshape(len(labels), -1)[places, 0].double().numpy()
        edges = np.linspace(first.min(), first.max(), INTERVALS + 1)
        if not (np.diff(edges) > 0).all():
            return {}  # one value only
        number, values = INTERVALS, np.clip(np.searchsorted(edges, first, side="right") - 1, 0, INTERVALS - 1)
    else:
        return {}
    if clients * number > MOST:
        return {}
    counts = np.bincount(owners * number + values, minlength=clients * number).reshape(clients, number)
    return {"train_counts": counts.astype(np.int32), "target_edges": edges}
