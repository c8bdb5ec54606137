"""The handwritten digits of scikit-learn, which need no download and train in seconds."""

from __future__ import annotations

import functools
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dfl_lightning.data.datamodule import FederatedData
from dfl_lightning.data.source import Source

__all__ = ["Digits"]


class Digits(FederatedData):
    """1,797 digits of 8 x 8 pixels (scikit-learn's copy of UCI's test set), 10 classes, no official test set.

    Args:
        test_fraction: share held out for the test, see `FederatedData`; null means a quarter, too.
        **kwargs: all other options of `FederatedData`.
    """

    shipped_images = True

    def __init__(self, test_fraction: float | None = 0.25, **kwargs: Any) -> None:
        super().__init__(test_fraction=test_fraction, **kwargs)

    def load(self) -> Source:
        """Load images uint8 [1797, 1, 8, 8] with values 0 to 16, scaled by 1/16."""
        images, labels = (torch.tensor(numbers) for numbers in _digits())
        return Source("Digits", images.unsqueeze(1), labels, num_classes=10, scale=1 / 16)


@functools.cache  # reading the compressed text takes as long as a few rounds
def _digits() -> tuple[np.ndarray, np.ndarray]:
    """Load images uint8 [1797, 8, 8] and classes int64 [1797], which callers must copy, as they are cached."""
    table = _table()
    if table is None:
        from sklearn.datasets import load_digits

        digits = load_digits()
        return digits.images.astype(np.uint8), digits.target.astype(np.int64)
    return table[:, :-1].reshape(-1, 8, 8).astype(np.uint8), table[:, -1].astype(np.int64)


def _table() -> np.ndarray | None:
    """Read scikit-learn's file, [1797, 65], without importing scikit-learn, which takes more than a second.

    Returns:
        The table; None if scikit-learn's file is not at the expected path or has another shape.
    """
    package = find_spec("sklearn")
    for folder in (package and package.submodule_search_locations) or ():
        file = Path(folder, "datasets", "data", "digits.csv.gz")
        if file.is_file():
            table = np.loadtxt(file, delimiter=",")
            return table if table.shape == (1797, 65) else None
    return None
