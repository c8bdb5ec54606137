"""The test data of a run, by which runs are paired: one rule for reports and studies."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np

_DECIDING = ("test_indices", "test_offsets", "rotation", "label_map", "test_label_map", "dataset", "test_official")


def tested_data(split: Mapping[str, np.ndarray]) -> str:
    """Hash what the clients are tested on, and what is done to it; empty where it is not known.

    Runs of the same seed are paired where this is the same. The samples that clients train on are not part of it: two
    methods may divide a client's samples differently into training and validation data and be tested alike.

    Args:
        split: arrays of the run's split file.
    """
    if "test_indices" not in split:
        return ""
    digest = hashlib.sha256()
    for name in _DECIDING:
        array = split.get(name, np.empty(0))
        digest.update(f"{name} {array.shape}".encode() + np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
