"""Tables that come with scikit-learn, without a download."""

from __future__ import annotations

from collections.abc import Callable

from sklearn.datasets import load_breast_cancer, load_diabetes, load_wine, make_multilabel_classification

from dfl_lightning.data.table import Table

__all__ = ["SHIPPED"]


def _diabetes() -> Table:
    return Table("diabetes", *load_diabetes(return_X_y=True, scaled=False))


def _wine() -> Table:
    found = load_wine()
    return Table("wine", found.data, found.target_names[found.target], kind="classes")


def _breast_cancer() -> Table:
    found = load_breast_cancer()
    return Table("breast cancer", found.data, found.target_names[found.target], kind="classes")


def _synthetic_labels() -> Table:
    """Nothing real: words of 20 kinds, drawn for up to 6 topics a text; the numbers are how often each occurs."""
    inputs, labels = make_multilabel_classification(1200, 20, n_classes=6, n_labels=2, length=40, random_state=0)
    return Table("synthetic labels", inputs, labels, kind="labels")


SHIPPED: dict[str, Callable[[], Table]] = {
    "diabetes": _diabetes,
    "wine": _wine,
    "breast_cancer": _breast_cancer,
    "synthetic_labels": _synthetic_labels,
}
"""By the name that `data.table` gives."""
