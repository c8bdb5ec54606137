"""Hash of the test data of a run: reports and studies pair runs whose hashes are equal."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np

_DECIDING = ("test_indices", "test_offsets", "rotation", "label_map", "test_label_map", "dataset", "test_official")


def tested_data(split: Mapping[str, np.ndarray]) -> str:
    """Hash the test data of all clients, with rotations and renamed labels; empty if the split has no test data.

    Runs of the same seed are paired if their hashes are equal. Training samples are not hashed: two methods may divide
    a client's samples differently into training and validation data, and still be tested on the same data.

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
