"""The numbers that a table compares: the score of a run's task in one of several ways, or a column of metrics.csv."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from dfl_lightning.bench.study.tables.measures.best_val import at_best_validation, is_of_clients
from dfl_lightning.runs.tables import read_metrics
from dfl_lightning.utils.errors import UserError, nearest
from dfl_lightning.utils.score import Score

SCORES = {
    "last": "test {} of the last evaluated round, mean over clients",
    "best_round": "test {}, mean over clients, of the round in which this is best, chosen on the test data themselves",
    "best_per_client": "test {} of each client's own best round, chosen on the test data themselves, mean over clients",
    "best_val": "test {} of each client's best round on validation data, mean over clients",
    "global_last": "test {} of the server's model in the last evaluated round",
    "global_mean_over_rounds": "test {} of the server's model, mean over the evaluated rounds",
}
"""The ways in which a run's summary.json gives its score, in words; {} stands for the name of the score."""

BEST_VAL = "best_val"
"""The value of `over_rounds` for the number at the best validation score."""
OVER_ROUNDS = {
    "last": "in the last round that has it",
    "mean": "mean over the rounds that have it",
    "sum": "sum over the rounds",
    BEST_VAL: "in the round with the best mean validation score",
}
"""The ways in which the rounds' numbers become one, in words."""
_REDUCE: dict[str, Callable[[Any], Any]] = {"last": lambda values: values[-1], "mean": np.mean, "sum": np.sum}
EVALUATED = ("val_", "test_", "global_test_", "merged_test_")
"""Prefixes of the columns that an evaluation writes; evaluated rounds have all of them."""
BETTER = ("higher", "lower")
KEYS = ("column", "over_rounds", "better")


@dataclass(frozen=True)
class Measure:
    """A number of a run, which a table compares.

    Attributes:
        key: one of `SCORES`, or a column of metrics.csv.
        over_rounds: one of `OVER_ROUNDS` for a column; empty for a score.
        lower_is_better: whether the best row has the lowest mean; for a score, the task decides.
        score: the kind of score of the runs; accuracy until it is known.
        by_task: whether the task decides if lower is better, for a column of its score.
        is_default: whether the study file names no measure, so that validation data choose the round, if any.
    """

    key: str
    over_rounds: str = ""
    lower_is_better: bool = False
    score: Score = field(default_factory=Score)
    by_task: bool = False
    is_default: bool = False

    @property
    def is_score(self) -> bool:
        """True if the measure is the task's score, which tables print in the unit of the task."""
        return not self.over_rounds

    def where_validated(self, has_validation: bool) -> Measure:
        """Let validation data choose the round, if the study names no measure and all of its runs have such data.

        Examples:
            >>> Measure("last", is_default=True).where_validated(True).key, Measure("last").where_validated(True).key
            ('best_val', 'last')
        """
        return replace(self, key="best_val") if self.is_default and has_validation else self

    def of_task(self, score: Score) -> Measure:
        """Return the measure with the name, unit and direction of a task's score.

        Examples:
            >>> Measure("last").of_task(Score("Regression", "rmse", False, False)).about
            'test RMSE of the last evaluated round, mean over clients; the lowest is the best'
        """
        decides = self.is_score or (self.by_task and self.key in score.columns)
        lower = not score.higher_is_better if decides else self.lower_is_better
        if self.by_task and not decides:
            lower = score.has_lower_better(self.key)
        return replace(self, score=score, lower_is_better=lower)

    def of_runs(self, runs: Mapping[int, Mapping[str, Path]]) -> Measure:
        """Return the measure with what it takes from all runs of a column; this one takes nothing.

        Args:
            runs: folders of the finished runs by seed and name of their cell.
        """
        return self

    def is_like(self, other: Measure) -> bool:
        """Return True if two measures are the same column, or are both scores, so that they can stand side by side."""
        first, second = ((m.key, m.over_rounds) if m.over_rounds else None for m in (self, other))
        return first == second

    @property
    def name(self) -> str:
        """The name in tables: a key of summary.json, or the column."""
        return self.key if not self.is_score or self.key.startswith("global_") else self.score.prefix + self.key

    @property
    def is_percent(self) -> bool:
        """True if the number, a score or a column, is a share, which tables print in percent."""
        if self.is_score:
            return self.score.percent
        return self.score.is_share(self.key)

    @property
    def factor(self) -> float:
        """The factor from a run's number to the table's: 100 for percent."""
        return 100.0 if self.is_percent else 1.0

    @property
    def unit(self) -> str:
        """The text after a number: a space and the percent sign, or nothing."""
        return " %" if self.is_percent else ""

    @property
    def points(self) -> str:
        """The text after a difference: a space and `points`, or nothing."""
        return " points" if self.unit else ""

    @property
    def axis(self) -> str:
        """The title of an axis of such numbers."""
        if not self.is_score:
            return f"{self.name}, %" if self.unit else self.name
        return self.unit.strip() or self.score.label

    @property
    def about(self) -> str:
        """The description for a caption."""
        better = "; the lowest is the best" if self.lower_is_better else ""
        if self.is_score:
            return f"{SCORES[self.key].format(self.score.label)}{', in percent' if self.unit else ''}{better}"
        percent = ", in percent" if self.unit else ""
        where = OVER_ROUNDS[self.over_rounds]
        if self.over_rounds == BEST_VAL and is_of_clients(self.key):
            where = "over clients, each in its best round on validation data"
        return f"column of metrics.csv, {where}{percent}{better}"

    def of(self, summary: Mapping[str, Any], run: Path | None) -> float | None:
        """Return the number of a finished run, in the table's unit; None if it has none, or it is not finite.

        A run whose task has another kind of score has none.

        Args:
            summary: content of the run's summary.json.
            run: folder of the run.
        """
        value = self._value(summary, run)
        return value if value is not None and math.isfinite(value) else None

    def is_not_finite(self, summary: Mapping[str, Any], run: Path | None) -> bool:
        """Return True if a finished run has this number, and it is NaN or infinite."""
        value = self._value(summary, run)
        return value is not None and not math.isfinite(value)

    def _value(self, summary: Mapping[str, Any], run: Path | None) -> float | None:
        """Return the number of a run, also if it is not finite; None if there is none."""
        if self.is_score:
            of_run = Score.read(summary)
            if of_run.name != self.score.name:
                return None
            numbers = of_run.numbers(summary)
            value = numbers.get(self.key)
            if value is None:  # JSON has neither infinity nor NaN
                return math.nan if numbers.get("not_finite") and self.key in numbers else None
            return self.factor * float(value)
        if self.over_rounds == BEST_VAL:
            value = None if run is None else at_best_validation(self.key, summary, run)
            return None if value is None else self.factor * value
        rows = self.rows(run)
        if self.key.startswith(EVALUATED):  # an evaluated round without a value had one that is not finite
            rows = [row for row in rows if any(cell and name.startswith(EVALUATED) for name, cell in row.items())]
        else:
            rows = [row for row in rows if row.get(self.key)]
        if not any(row.get(self.key) for row in rows):
            return None
        reduce = _REDUCE[self.over_rounds]
        return self.factor * float(reduce([float(row.get(self.key) or math.nan) for row in rows]))

    def rows(self, run: Path | None) -> list[dict[str, str]]:
        """Return the lines of a run's metrics.csv that count for a column; there are none without a run."""
        return [] if run is None else read_metrics(run / "metrics.csv")

    def check(self, columns: Sequence[str]) -> None:
        """Raise if a run does not log this number, before it is trained.

        Args:
            columns: names of all columns that its metrics.csv may have.

        Raises:
            UserError: the number is not one of these columns, or there are no validation data to choose its round.
        """
        if self.over_rounds == BEST_VAL and "val_loss" not in columns:
            raise UserError(
                "number.over_rounds: best_val chooses rounds on validation data, and this run has none; set "
                "data.val_fraction, or over_rounds: last"
            )
        if not self.is_score and self.key not in columns:
            raise UserError(
                f"number: no policy or monitor of this run logs '{self.key}'{nearest(self.key, columns)}; it has "
                f"{', '.join(columns)}, others come with --monitors, and a class of your own names its numbers in logs"
            )

    def text(self, value: float) -> str:
        """Format a number for a table: percent with two decimals, others with at least three significant digits.

        Examples:
            >>> Measure("last").text(81.0), Measure("test_acc_variance", "last").text(0.00123456)
            ('81.00', '0.00123')
            >>> Measure("bytes_received", "sum").text(1234567.0)
            '1234567'
        """
        if self.unit:
            return f"{value:.2f}"
        digits = 2 - math.floor(math.log10(abs(value))) if value else 2
        return f"{value:.{min(8, max(0, digits))}f}"

    def like(self, value: float, reference: float) -> str:
        """Format a number with the digits after the point of another one, such as a deviation with those of the mean.

        Examples:
            >>> Measure("test_acc_variance", "last").like(0.0002617, 0.19)
            '0.000'
        """
        return f"{value:.{len(self.text(reference).partition('.')[2])}f}"


def read_measure(content: Mapping[str, Any], where: str) -> Measure:
    """Read the measure of a study file from its key `score` or `number`; it may not have both.

    Args:
        content: keys and values of the file.
        where: path of the file, for messages.

    Raises:
        UserError: the file has both keys, or a value is unknown or not valid.
    """
    number = content.get("number")
    way = content.get("score")
    if way is not None and number is not None:
        raise UserError(f"{where}: a table compares score or number, not both")
    if way is not None:
        return score(way, f"{where}: score")
    if number is None:
        return Measure("last", is_default=True)
    if isinstance(number, str):
        number = {"column": number}
    if not isinstance(number, Mapping) or not isinstance(number.get("column"), str):
        raise UserError(f"{where}: number needs a column of metrics.csv, for example {{column: test_acc_variance}}")
    for key in number:
        if key not in KEYS:
            raise UserError(f"{where}: number: unknown key '{key}'{nearest(str(key), KEYS)} (keys: {', '.join(KEYS)})")
    for key, among in (("over_rounds", tuple(OVER_ROUNDS)), ("better", BETTER)):
        if number.get(key, among[0]) not in among:
            raise UserError(f"{where}: number.{key}: {number[key]!r} is not one of {', '.join(among)}")
    better = number.get("better")
    return Measure(number["column"], number.get("over_rounds", "last"), better == "lower", by_task=better is None)


def measure_of(
    way: str | None,
    column: str | None,
    over_rounds: str | None = None,
    better: str | None = None,
    reach: Measure | None = None,
    at_equal: Measure | None = None,
) -> Measure | None:
    """Return the measure that the options of `dfl-study table` name; None if they name none.

    Args:
        way: value of `--score`.
        column: value of `--number`.
        over_rounds: value of `--over-rounds`, for a column.
        better: value of `--better`, for a column.
        reach: measure of `--reach`.
        at_equal: measure of `--at-equal`.

    Raises:
        UserError: two measures are named, an option for a column has none, or a score is unknown.
    """
    given = {"--score": way, "--number": column, "--reach": reach, "--at-equal": at_equal}
    named = [option for option, value in given.items() if value is not None]
    if len(named) > 1:
        raise UserError(f"a table compares {' or '.join(named)}, not both")
    if column is None and (over_rounds or better):
        raise UserError("--over-rounds and --better say something about a column; name one with --number")
    if column is not None:
        return Measure(column, over_rounds or "last", better == "lower", by_task=better is None)
    return score(way, "--score") if way is not None else reach or at_equal


def score(name: Any, where: str) -> Measure:
    """Return the measure of the task's score in one of the ways of `SCORES`.

    Args:
        name: one of `SCORES`.
        where: option or key that names it, for messages.

    Raises:
        UserError: there is no such way.
    """
    ways = tuple(SCORES)
    if name not in ways:
        raise UserError(f"{where}: there is no '{name}'{nearest(str(name), ways)} (it is {', '.join(ways)})")
    return Measure(str(name))
