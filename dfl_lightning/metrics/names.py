"""The names of metrics: the built-in ones by name, and the column of each metric of a run."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torchmetrics import Metric, MetricCollection

from dfl_lightning.metrics.built_in import AUROC, ECE, AveragePrecision, BalancedAccuracy, BuiltIn, F1Macro
from dfl_lightning.utils.errors import UserError, nearest

__all__ = ["BUILT_IN", "built_in", "columns_of"]

BUILT_IN: Mapping[str, type[BuiltIn]] = {
    kind.column: kind for kind in (AUROC, AveragePrecision, F1Macro, BalancedAccuracy, ECE)
}
"""The metrics that have a name, by it."""


def built_in(name: str) -> Metric:
    """Make the metric that has a name.

    Args:
        name: `auroc`, `average_precision`, `f1_macro`, `balanced_accuracy` or `ece`.

    Raises:
        UserError: no metric has the name.
    """
    if name not in BUILT_IN:
        listed = f"those with a name are {', '.join(BUILT_IN)}; give an object of torchmetrics for others"
        raise UserError(f"model.metrics: there is no '{name}'{nearest(name, BUILT_IN)} ({listed})")
    return BUILT_IN[name]()


def columns_of(metrics: Iterable[Metric | str]) -> dict[str, Metric]:
    """Return the metrics by the name of their column.

    A name is the class's in lower case, `Multiclass` left out: `MulticlassAUROC` is `auroc`. A class's attribute
    `column` is the name instead. Metrics that would have the same name get longer ones: the class's whole name, or the
    arguments that differ, as in `f1_score_macro` and `f1_score_micro`.

    Args:
        metrics: the metrics of a run; built-in ones by name or as objects.

    Raises:
        UserError: an entry is no metric, or two of them do not differ.

    Examples:
        >>> from torchmetrics.classification import MulticlassAUROC, MulticlassF1Score
        >>> both = [MulticlassF1Score(3, average=average) for average in ("macro", "micro")]
        >>> list(columns_of([MulticlassAUROC(3), *both, "ece"]))
        ['auroc', 'f1_score_macro', 'f1_score_micro', 'ece']
    """
    if isinstance(metrics, Metric | MetricCollection | str):
        raise UserError(f"model.metrics takes a list of metrics, not a {type(metrics).__name__}; list them one by one")
    made = [built_in(each) if isinstance(each, str) else each for each in metrics]
    for each in made:
        if isinstance(each, MetricCollection):
            raise UserError("model.metrics: a MetricCollection has several columns; list its metrics one by one")
        if not isinstance(each, Metric):
            remedy = (
                f"make an object of it, {each.__name__}(…)" if isinstance(each, type) else "give one of torchmetrics"
            )
            raise UserError(f"model.metrics: {each!r} is not a torchmetrics.Metric; {remedy}")
    names = [_short_name(each) for each in made]
    for _, alike in _repeated(names):
        if len({type(made[index]) for index in alike}) > 1:
            for index in alike:
                names[index] = _name(made[index])
    for name, alike in _repeated(names):
        for index, longer in zip(alike, _told_apart(name, [made[index] for index in alike]), strict=True):
            names[index] = longer
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise UserError(f"model.metrics: two metrics would have the column '{twice}'; leave one of them out")
    return dict(zip(names, made, strict=True))


def in_words(name: str) -> str:
    """Return the name of a class in lower case, with underscores between its words.

    Examples:
        >>> in_words("BinaryAUROC"), in_words("F1Score"), in_words("KLDivergence"), in_words("R2Score")
        ('binary_auroc', 'f1_score', 'kl_divergence', 'r2_score')
    """
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def _repeated(names: Sequence[str]) -> list[tuple[str, list[int]]]:
    """Return the names that occur several times, each with its places."""
    places = {name: [index for index, other in enumerate(names) if other == name] for name in names}
    return [(name, indices) for name, indices in places.items() if len(indices) > 1]


def _name(metric: Metric) -> str:
    return str(getattr(metric, "column", None) or in_words(type(metric).__name__))


def _short_name(metric: Metric) -> str:
    own = getattr(metric, "column", None)
    return str(own) if own else in_words(type(metric).__name__.removeprefix("Multiclass"))


def _told_apart(name: str, several: Sequence[Metric]) -> list[str]:
    """Return longer names of metrics of one name, with the options in which they differ.

    Raises:
        UserError: two of them have the same options.
    """
    options = [_options(metric) for metric in several]
    keys = [key for key in options[0] if any(other.get(key) != options[0][key] for other in options)]
    keys += sorted({key for other in options for key in other if key not in options[0]})
    words = ["_".join([name, *(_said(key, other[key]) for key in keys if key in other)]) for other in options]
    if len(set(words)) < len(words):
        kinds = " and ".join(dict.fromkeys(type(metric).__name__ for metric in several))
        raise UserError(
            f"model.metrics has {len(several)} times {kinds}, and both would have the column '{name}'; leave one out, "
            "or give a class of your own the attribute column = 'its_name'"
        )
    return words


def _options(metric: Metric) -> dict[str, Any]:
    """Return the public attributes of a metric that are numbers, texts or None, by name."""
    plain = (bool, int, float, str, type(None))
    return {key: value for key, value in vars(metric).items() if key[0] != "_" and isinstance(value, plain)}


def _said(key: str, value: Any) -> str:
    """Return an option as part of a column's name.

    Examples:
        >>> _said("average", "macro"), _said("top_k", 5), _said("threshold", 0.25)
        ('macro', 'top_k_5', 'threshold_0_25')
    """
    text = str(value) if isinstance(value, str) else f"{key}_{value}"
    return re.sub(r"\W+", "_", text).lower()
