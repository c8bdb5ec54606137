"""What a table compares: one of a run's accuracies, or any number of its metrics.csv."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dfl_lightning.report.tables import read_metrics
from dfl_lightning.utils.errors import UserError, nearest

ACCURACIES = {
    "acc_last": "test accuracy of the last evaluated round, mean over clients",
    "acc_best_round": "test accuracy, mean over clients, of the round in which this is best",
    "acc_best_per_client": "test accuracy of each client's own best round, mean over clients",
    "acc_best_val": "test accuracy of each client's best round on validation data, mean over clients",
    "global_last": "test accuracy of the server's model in the last evaluated round",
    "global_mean_over_rounds": "test accuracy of the server's model, mean over the evaluated rounds",
}
"""The accuracies of a run's summary.json that a table can compare, in words."""

OVER_ROUNDS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "last": (lambda values: values[-1], "in the last round that has it"),
    "mean": (np.mean, "mean over the rounds that have it"),
    "sum": (np.sum, "sum over the rounds"),
}
"""How the rounds' numbers become one, and what a caption says of it."""
EVALUATED = ("val_", "test_", "global_test_", "merged_test_")
"""How columns begin that an evaluation writes; evaluated rounds have all of them."""
BETTER = ("higher", "lower")
KEYS = ("column", "over_rounds", "better")


@dataclass(frozen=True)
class Measure:
    """A number of a run.

    Attributes:
        name: one of `ACCURACIES`, or a column of metrics.csv.
        over_rounds: of a column, one of `OVER_ROUNDS`; empty of an accuracy.
        lower_is_better: whether the best row is the one with the lowest mean.
    """

    name: str
    over_rounds: str = ""
    lower_is_better: bool = False

    @property
    def is_accuracy(self) -> bool:
        """Whether it is an accuracy, which tables print in percent."""
        return not self.over_rounds

    @property
    def about(self) -> str:
        """What a caption says."""
        if self.is_accuracy:
            return f"{ACCURACIES[self.name]}, in percent"
        better = "; the lowest is the best" if self.lower_is_better else ""
        return f"column of metrics.csv, {OVER_ROUNDS[self.over_rounds][1]}{better}"

    def of(self, summary: Mapping[str, Any], run: Path | None) -> float | None:
        """The number of a run that is done, in the table's unit; None where it has none, or one that is not finite.

        Args:
            summary: the run's summary.json.
            run: its folder.
        """
        if self.is_accuracy:
            accuracy = summary.get("test_accuracy", {}).get(self.name)
            return None if accuracy is None else 100 * float(accuracy)
        rows = [] if run is None else read_metrics(run / "metrics.csv")
        if self.name.startswith(EVALUATED):  # an empty cell of an evaluated round is a number that is not finite
            rows = [row for row in rows if any(cell and name.startswith(EVALUATED) for name, cell in row.items())]
        else:
            rows = [row for row in rows if row.get(self.name)]
        if not any(row.get(self.name) for row in rows):
            return None
        value = float(OVER_ROUNDS[self.over_rounds][0]([float(row.get(self.name) or math.nan) for row in rows]))
        return value if math.isfinite(value) else None

    def check(self, columns: Sequence[str]) -> None:
        """Refuse a number that a run does not have, before it is trained.

        Args:
            columns: names of the numbers that its metrics.csv may have.

        Raises:
            UserError: it is none of them.
        """
        if not self.is_accuracy and self.name not in columns:
            raise UserError(
                f"number: no policy or monitor of this run logs '{self.name}'{nearest(self.name, columns)}; it has "
                f"{', '.join(columns)}, others come with --monitors, and a class of your own names its numbers in logs"
            )

    def text(self, value: float) -> str:
        """A number as a table prints it: an accuracy with two decimals, others with three digits or more.

        Examples:
            >>> Measure("acc_last").text(81.0), Measure("test_acc_variance", "last").text(0.00123456)
            ('81.00', '0.00123')
            >>> Measure("bytes_received", "sum").text(1234567.0)
            '1234567'
        """
        if self.is_accuracy:
            return f"{value:.2f}"
        digits = 2 - math.floor(math.log10(abs(value))) if value else 2
        return f"{value:.{min(8, max(0, digits))}f}"


def read_measure(content: Mapping[str, Any], where: str) -> Measure:
    """The keys `accuracy` and `number` of a study file, of which it has one at most.

    Args:
        content: of the file.
        where: the file, for the message.

    Raises:
        UserError: both, an unknown accuracy or key, or a value that is not as it must be.
    """
    number = content.get("number")
    if number is None:
        return accuracy(content.get("accuracy", "acc_best_round"), f"{where}: accuracy")
    if "accuracy" in content:
        raise UserError(f"{where}: a table compares accuracy or number, not both")
    if isinstance(number, str):
        number = {"column": number}
    if not isinstance(number, Mapping) or not isinstance(number.get("column"), str):
        raise UserError(f"{where}: number needs a column of metrics.csv, for example {{column: test_acc_variance}}")
    for key in number:
        if key not in KEYS:
            raise UserError(f"{where}: number: unknown key '{key}'{nearest(str(key), KEYS)} (keys: {', '.join(KEYS)})")
    for key, among in (("over_rounds", tuple(OVER_ROUNDS)), ("better", BETTER)):
        if number.get(key, among[0]) not in among:
            raise UserError(f"{where}: number.{key}: {number[key]!r} is none of {', '.join(among)}")
    return Measure(number["column"], number.get("over_rounds", "last"), number.get("better") == "lower")


def measure_of(
    name: str | None, column: str | None, over_rounds: str | None = None, better: str | None = None
) -> Measure | None:
    """What the options of `dfl-study table` name; None: what the study compares.

    Args:
        name: `--accuracy`.
        column: `--number`.
        over_rounds: `--over-rounds`, of a column.
        better: `--better`, of a column.

    Raises:
        UserError: an accuracy and a number, an option of a column without one, or an unknown accuracy.
    """
    if column is None and (over_rounds or better):
        raise UserError("--over-rounds and --better say something about a column; name one with --number")
    if column is None:
        return None if name is None else accuracy(name, "--accuracy")
    if name is not None:
        raise UserError("a table compares --accuracy or --number, not both")
    return Measure(column, over_rounds or "last", better == "lower")


def accuracy(name: Any, where: str) -> Measure:
    """An accuracy by its name.

    Args:
        name: one of `ACCURACIES`.
        where: the place in the file, for the message.

    Raises:
        UserError: there is no such accuracy.
    """
    if name not in ACCURACIES:
        raise UserError(
            f"{where}: there is no '{name}'{nearest(str(name), ACCURACIES)} (it is {', '.join(ACCURACIES)})"
        )
    return Measure(str(name))
