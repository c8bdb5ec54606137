"""The score of a task: its name, its direction and its unit in files, tables and charts."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from dfl_lightning.utils.words import as_percent

__all__ = ["Score"]

_WORDS = {
    **{
        "acc": "accuracy",
        "token_acc": "token accuracy",
        "label_acc": "label accuracy",
        "subset_acc": "subset accuracy",
        "micro_f1": "micro-F1",
        "macro_f1": "macro-F1",
    },
    **{"auroc": "AUROC", "f1_macro": "macro-F1", "ece": "calibration error"},
    **{"rmse": "RMSE", "mse": "MSE", "mae": "MAE", "r2": "R²", "f1": "F1"},
}
"""Names for readers of scores whose columns have other names."""

_ERRORS, _SHARES = (
    {"rmse", "mse", "mae", "perplexity", "ece"},
    {
        *("acc", "token_acc", "label_acc", "subset_acc", "micro_f1", "macro_f1", "f1"),
        *("auroc", "average_precision", "f1_macro", "balanced_accuracy", "ece"),
    },
)
"""Names of numbers of the shipped tasks and metrics for which lower is better, and of those that are shares."""


_OTHER_SHARES = {
    *("neighbour_precision", "neighbour_recall", "matched_precision", "matched_recall", "friend_accuracy"),
    *("link_density", "link_symmetry", "collaboration_sparsity", "collaboration_symmetry", "malicious_neighbours"),
    *("adversary_links", "adversary_weight", "clipped", "accepted", "kept"),
}
"""Columns of policies and monitors that are shares from 0 to 1."""


class Judged(Protocol):
    """The attributes of a task that are used here, so that commands that only read files need not import torch."""

    @property
    def score(self) -> str:
        """Name of the number that compares models."""

    @property
    def higher_is_better(self) -> bool:
        """True if a higher score is better."""

    @property
    def percent(self) -> bool:
        """True if the score is a share from 0 to 1."""


@dataclass(frozen=True)
class Score:
    """A task's score, as files, tables and charts write it; by default the accuracy of a classification.

    Attributes:
        task: name of the task's class.
        name: name of the score in columns, `test_<name>`.
        higher_is_better: True if a higher score is better.
        percent: True if the score is a share from 0 to 1, shown in percent.
    """

    task: str = "Classification"
    name: str = "acc"
    higher_is_better: bool = True
    percent: bool = True

    @classmethod
    def of(cls, task: Judged) -> Score:
        """Create the score of a task."""
        return cls(type(task).__name__, task.score, task.higher_is_better, task.percent)

    @classmethod
    def of_columns(cls, columns: Iterable[str]) -> Score:
        """Infer the score of a run without a summary from its columns; by default the accuracy.

        Args:
            columns: names of the columns of metrics.csv.

        Examples:
            >>> Score.of_columns(["round", "test_rmse", "test_rmse_worst10"]).higher_is_better
            False
        """
        matches = (re.fullmatch(r"test_(\w+)_worst10", name) for name in columns)
        name = next((match[1] for match in matches if match), "acc")
        return cls() if name == "acc" else cls("", name, name not in _ERRORS, name in _SHARES)

    @classmethod
    def read(cls, summary: Mapping[str, Any]) -> Score:
        """Read the score of a run from its summary; by default the accuracy.

        Args:
            summary: content of summary.json.

        Examples:
            >>> Score.read({"task": {"name": "Regression", "score": "rmse", "higher_is_better": False}})
            Score(task='Regression', name='rmse', higher_is_better=False, percent=False)
        """
        about = summary.get("task")
        if not isinstance(about, Mapping) or "score" not in about:
            return cls()
        higher, percent = bool(about.get("higher_is_better", True)), bool(about.get("percent", False))
        return cls(str(about.get("name", "")), str(about["score"]), higher, percent)

    def as_entry(self) -> dict[str, Any]:
        """Return the entry `task` of summary.json."""
        about = {"name": self.task, "score": self.name}
        return {**about, "higher_is_better": self.higher_is_better, "percent": self.percent}

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of metrics.csv that have the unit and the direction of the score."""
        plain = [f"{split}_{self.name}" for split in ("val", "test", "global_test", "merged_test")]
        return (
            *plain,
            *(f"{split}_{self.name}_{which}" for split in ("val", "test") for which in ("best10", "worst10")),
        )

    def is_share(self, column: str) -> bool:
        """Return True if a column is a share from 0 to 1, or an evaluation's spread of shares in the same unit.

        Args:
            column: name of a column of metrics.csv.

        Examples:
            >>> [Score().is_share(name) for name in ("test_acc_std", "val_f1", "test_acc_variance", "test_loss")]
            [True, True, False, False]
            >>> Score().is_share("link_density"), Score().is_share("neighbours")
            (True, False)
        """
        if column in _OTHER_SHARES:
            return True
        match = re.fullmatch(
            r"(?:val|test|global_test|merged_test)_(\w+?)(?:_(?:std|best10|worst10|adversaries))?", column
        )
        return match is not None and (match[1] in _SHARES or (self.percent and match[1] == self.name))

    def has_lower_better(self, column: str) -> bool:
        """Return True if a column of an evaluation is an error by its name, so that lower is better.

        Args:
            column: name of a column of metrics.csv.

        Examples:
            >>> [Score().has_lower_better(name) for name in ("test_ece", "val_rmse", "test_auroc", "val_r2_undefined")]
            [True, True, False, True]
        """
        name = column.partition("_")[2] if column.startswith(("val_", "test_")) else ""
        return name in _ERRORS or name.endswith("_undefined")

    @property
    def block(self) -> str:
        """The key of summary.json for the numbers of the score, `test_accuracy` or `test_score`."""
        return "test_accuracy" if self.name == "acc" else "test_score"

    @property
    def prefix(self) -> str:
        """The prefix of four names in that block, for example in `acc_last` for an accuracy, otherwise `last`."""
        return "acc_" if self.name == "acc" else ""

    def numbers(self, summary: Mapping[str, Any]) -> dict[str, Any]:
        """Return the numbers of the score in a summary, by their names without prefix.

        Args:
            summary: content of summary.json.

        Examples:
            >>> Score().numbers({"test_accuracy": {"acc_last": 0.9, "mean": 0.9}})
            {'last': 0.9, 'mean': 0.9}
        """
        return {name.removeprefix(self.prefix): value for name, value in summary.get(self.block, {}).items()}

    @property
    def label(self) -> str:
        """The name for readers, for example `accuracy` or `RMSE`; other names have spaces instead of underscores."""
        return _WORDS.get(self.name, self.name.replace("_", " "))

    @property
    def short(self) -> str:
        """The short name with spaces instead of underscores, for narrow lines."""
        return self.name.replace("_", " ")

    @property
    def factor(self) -> float:
        """The factor to the unit of tables and charts: 100 for a share, otherwise 1."""
        return 100.0 if self.percent else 1.0

    @property
    def unit(self) -> str:
        """The unit after a number that was multiplied by `factor`."""
        return " %" if self.percent else ""

    def merit(self, value: float) -> float:
        """Return the score, negated if a lower score is better, so that a higher merit is always better."""
        return value if self.higher_is_better else -value

    @property
    def column(self) -> str:
        """The column of metrics.csv, and the array of clients.npz, with the score on test data."""
        return f"test_{self.name}"

    @property
    def field(self) -> str:
        """The name of a chart's numbers: `accuracy`, or the score's name."""
        return "accuracy" if self.name == "acc" else self.name

    @property
    def axis(self) -> str:
        """The title of an axis: `test accuracy, %`."""
        return f"test {self.label}{', %' if self.percent else ''}"

    @property
    def format(self) -> str:
        """The format of numbers in charts, in d3's notation."""
        return ".1f" if self.percent else ".4~g"

    def number(self, value: float, reference: float | None = None) -> str:
        """Format a number of a table or a chart, without its unit.

        Args:
            value: the number, not multiplied by `factor`.
            reference: a number whose digits after the point are used, for example the mean if `value` is a deviation.

        Examples:
            >>> Score().number(0.92149), Score("Regression", "rmse", False, False).number(54.12345)
            ('92.1', '54.1')
            >>> Score("Regression", "rmse", False, False).number(0.08012, reference=54.12345)
            '0.1'
        """
        if self.percent:
            return f"{100 * value:.1f}"
        if reference is None or not math.isfinite(reference) or not math.isfinite(value):
            return significant(value, 3)
        return f"{value:.{len(significant(abs(reference), 3).partition('.')[2])}f}"

    def signed(self, value: float, reference: float | None = None) -> str:
        """Format a difference of two scores with its sign, without its unit; one whose digits are all 0 has no sign.

        Args:
            value: the difference, not multiplied by `factor`.
            reference: a number whose digits after the point are used; see `number`.

        Examples:
            >>> Score().signed(-0.0123), Score("Regression", "rmse", False, False).signed(0.25), Score().signed(-0.0001)
            ('−1.2', '+0.250', '0.0')
        """
        text = self.number(abs(value), reference)
        if not text.strip("0."):
            return text
        return f"{'−' if value < 0 else '+'}{text}"

    def distance(self, value: float) -> str:
        """Format the absolute value of a difference, in points if the score is a share.

        Examples:
            >>> Score().distance(-0.0123), Score("Regression", "rmse", False, False).distance(0.25)
            ('1.2 points', '0.250')
        """
        return f"{self.number(abs(value))}{' points' if self.percent else ''}"

    def text(self, value: float) -> str:
        """Format a number for a terminal: a share in percent, others with four significant digits.

        Args:
            value: the number, not multiplied by `factor`.

        Examples:
            >>> Score().text(0.92149), Score("Regression", "rmse", False, False).text(54.12345)
            ('92.1 %', '54.12')
        """
        if self.percent:
            return as_percent(value)
        return significant(value)


def significant(value: float, digits: int = 4) -> str:
    """Format a number with some significant digits, as a decimal fraction unless that would be long.

    Args:
        value: the number; it may be infinite or NaN.
        digits: number of significant digits, 1 or more.

    Examples:
        >>> significant(2.0), significant(1234.56), significant(0.00012345), significant(0.0)
        ('2.000', '1235', '0.0001234', '0.000')
    """
    if not math.isfinite(value) or (value and not 1e-6 < abs(value) < 1e9):
        return f"{value:.{digits}g}"
    before = math.floor(math.log10(abs(value))) + 1 if value else 1
    return f"{value:.{max(0, digits - before)}f}"
