"""What a table compares: the score of a run's task in one of several ways, or any number of its metrics.csv."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

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
"""The ways in which a run's summary.json has its score, in words; {} stands for what the score is called."""

ACCURACIES = tuple(name if name.startswith("global_") else f"acc_{name}" for name in SCORES)
"""The same of an accuracy, as summary.json and `accuracy` in study files name them."""

OVER_ROUNDS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "last": (lambda values: values[-1], "in the last round that has it"),
    "mean": (np.mean, "mean over the rounds that have it"),
    "sum": (np.sum, "sum over the rounds"),
}
"""How the rounds' numbers become one, and what a caption says of it."""
EVALUATED = ("val_", "test_", "global_test_", "merged_test_")
"""How columns begin that an evaluation writes; evaluated rounds have all of them."""
SHARES = {
    *("neighbour_precision", "neighbour_recall", "matched_precision", "matched_recall", "friend_accuracy"),
    *("link_density", "link_symmetry", "adversary_links", "adversary_weight", "clipped", "accepted", "kept"),
}
"""The columns of policies and monitors that are shares; those of evaluations are known by their names."""
BETTER = ("higher", "lower")
KEYS = ("column", "over_rounds", "better")


@dataclass(frozen=True)
class Measure:
    """A number of a run.

    Attributes:
        key: one of `SCORES`, or a column of metrics.csv.
        over_rounds: of a column, one of `OVER_ROUNDS`; empty of a score.
        lower_is_better: whether the best row is the one with the lowest mean; of a score its task says that.
        score: the score of the runs; until they say it, that of classes.
        is_default: whether the study file names none, so that validation data decide where there are any.
        by_task: of a column, whether its runs' task decides which is the best, where it is a column of its score.
    """

    key: str
    over_rounds: str = ""
    lower_is_better: bool = False
    score: Score = field(default_factory=Score)
    by_task: bool = False
    is_default: bool = False

    @property
    def is_score(self) -> bool:
        """Whether it is the task's score, which tables print in the unit of the task."""
        return not self.over_rounds

    def where_validated(self, has_validation: bool) -> Measure:
        """Let validation data choose the round, where the study names no score and all of its runs have such data.

        Args:
            has_validation: whether all of them have.

        Examples:
            >>> Measure("last", is_default=True).where_validated(True).key, Measure("last").where_validated(True).key
            ('best_val', 'last')
        """
        return replace(self, key="best_val") if self.is_default and has_validation else self

    def of_task(self, score: Score) -> Measure:
        """The same of runs of a task, whose name, unit and direction it has then.

        Args:
            score: of the task.

        Examples:
            >>> Measure("last").of_task(Score("Regression", "rmse", False, False)).about
            'test RMSE of the last evaluated round, mean over clients; the lowest is the best'
        """
        decides = self.is_score or (self.by_task and self.key in score.columns)
        return replace(
            self, score=score, lower_is_better=not score.higher_is_better if decides else self.lower_is_better
        )

    def is_like(self, other: Measure) -> bool:
        """Whether two measures are the same number, or the score in two ways, so that they can stand side by side.

        Args:
            other: such as that of published numbers.
        """
        own, theirs = ((m.key, m.over_rounds) if m.over_rounds else None for m in (self, other))
        return own == theirs

    @property
    def name(self) -> str:
        """What tables call it: a key of summary.json, or the column."""
        return self.key if not self.is_score or self.key.startswith("global_") else self.score.prefix + self.key

    @property
    def is_percent(self) -> bool:
        """Whether it is a share, which tables print in percent, be it the score or a column."""
        if self.is_score:
            return self.score.percent
        return self.key in SHARES or self.score.is_share(self.key)

    @property
    def factor(self) -> float:
        """What numbers of runs are multiplied by: 100 for percent."""
        return 100.0 if self.is_percent else 1.0

    @property
    def unit(self) -> str:
        """What follows a number, a space and the percent sign or nothing."""
        return " %" if self.is_percent else ""

    @property
    def points(self) -> str:
        """What follows a difference."""
        return " points" if self.unit else ""

    @property
    def axis(self) -> str:
        """The title of an axis of such numbers."""
        if not self.is_score:
            return f"{self.name}, %" if self.unit else self.name
        return self.unit.strip() or self.score.label

    @property
    def about(self) -> str:
        """What a caption says."""
        better = "; the lowest is the best" if self.lower_is_better else ""
        if self.is_score:
            return f"{SCORES[self.key].format(self.score.label)}{', in percent' if self.unit else ''}{better}"
        percent = ", in percent" if self.unit else ""
        return f"column of metrics.csv, {OVER_ROUNDS[self.over_rounds][1]}{percent}{better}"

    def of(self, summary: Mapping[str, Any], run: Path | None) -> float | None:
        """The number of a run that is done, in the table's unit; None where it has none, or one that is not finite.

        A run of another task's score has none.

        Args:
            summary: the run's summary.json.
            run: its folder.
        """
        value = self._value(summary, run)
        return value if value is not None and math.isfinite(value) else None

    def is_not_finite(self, summary: Mapping[str, Any], run: Path | None) -> bool:
        """Say whether a run that is done has this number, and it is NaN or infinite.

        Args:
            summary: the run's summary.json.
            run: its folder.
        """
        value = self._value(summary, run)
        return value is not None and not math.isfinite(value)

    def _value(self, summary: Mapping[str, Any], run: Path | None) -> float | None:
        """Return the number of a run, also one that is not finite; None where it has none."""
        if self.is_score:
            own = Score.read(summary)
            if own.name != self.score.name:
                return None
            numbers = own.numbers(summary)
            value = numbers.get(self.key)
            if value is None:  # JSON has no infinity and no NaN
                return math.nan if numbers.get("not_finite") and self.key in numbers else None
            return self.factor * float(value)
        rows = [] if run is None else read_metrics(run / "metrics.csv")
        if self.key.startswith(EVALUATED):  # an empty cell of an evaluated round is a number that is not finite
            rows = [row for row in rows if any(cell and name.startswith(EVALUATED) for name, cell in row.items())]
        else:
            rows = [row for row in rows if row.get(self.key)]
        if not any(row.get(self.key) for row in rows):
            return None
        over_rounds = OVER_ROUNDS[self.over_rounds][0]
        return self.factor * float(over_rounds([float(row.get(self.key) or math.nan) for row in rows]))

    def check(self, columns: Sequence[str]) -> None:
        """Refuse a number that a run does not have, before it is trained.

        Args:
            columns: names of the numbers that its metrics.csv may have.

        Raises:
            UserError: it is none of them.
        """
        if not self.is_score and self.key not in columns:
            raise UserError(
                f"number: no policy or monitor of this run logs '{self.key}'{nearest(self.key, columns)}; it has "
                f"{', '.join(columns)}, others come with --monitors, and a class of your own names its numbers in logs"
            )

    def text(self, value: float) -> str:
        """A number as a table prints it: one in percent with two decimals, others with three digits or more.

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


def read_measure(content: Mapping[str, Any], where: str) -> Measure:
    """The keys `score`, `accuracy` and `number` of a study file, of which it has one at most.

    Args:
        content: of the file.
        where: the file, for the message.

    Raises:
        UserError: two of them, an unknown score or key, or a value that is not as it must be.
    """
    number = content.get("number")
    given = [key for key in ("score", "accuracy", "number") if content.get(key) is not None]
    if len(given) > 1:
        raise UserError(f"{where}: a table compares {' or '.join(given)}, not both")
    if "score" in given:
        return score(content["score"], f"{where}: score")
    if "accuracy" in given:
        return accuracy(content["accuracy"], f"{where}: accuracy")
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
            raise UserError(f"{where}: number.{key}: {number[key]!r} is none of {', '.join(among)}")
    better = number.get("better")
    return Measure(number["column"], number.get("over_rounds", "last"), better == "lower", by_task=better is None)


def measure_of(
    name: str | None,
    column: str | None,
    over_rounds: str | None = None,
    better: str | None = None,
    way: str | None = None,
    reach: Measure | None = None,
) -> Measure | None:
    """What the options of `dfl-study table` name; None: what the study compares.

    Args:
        name: `--accuracy`.
        column: `--number`.
        over_rounds: `--over-rounds`, of a column.
        better: `--better`, of a column.
        way: `--score`.
        reach: `--reach`.

    Raises:
        UserError: two of score, accuracy, number and reach, an option of a column without one, or an unknown score.
    """
    given = {"--score": way, "--accuracy": name, "--number": column, "--reach": reach}
    named = [option for option, value in given.items() if value is not None]
    if len(named) > 1:
        raise UserError(f"a table compares {' or '.join(named)}, not both")
    if column is None and (over_rounds or better):
        raise UserError("--over-rounds and --better say something about a column; name one with --number")
    if column is not None:
        return Measure(column, over_rounds or "last", better == "lower", by_task=better is None)
    if way is not None:
        return score(way, "--score")
    return reach if name is None else accuracy(name, "--accuracy")


def score(name: Any, where: str) -> Measure:
    """The task's score in one of its ways.

    Args:
        name: one of `SCORES`.
        where: the place in the file, for the message.

    Raises:
        UserError: there is no such way.
    """
    return _way(name, tuple(SCORES), where)


def accuracy(name: Any, where: str) -> Measure:
    """The same by the name of an accuracy, as files of studies on classes say.

    Args:
        name: one of `ACCURACIES`.
        where: the place in the file, for the message.

    Raises:
        UserError: there is no such accuracy.
    """
    return _way(name, ACCURACIES, where)


def _way(name: Any, among: tuple[str, ...], where: str) -> Measure:
    if name not in among:
        raise UserError(f"{where}: there is no '{name}'{nearest(str(name), among)} (it is {', '.join(among)})")
    return Measure(str(name).removeprefix("acc_"))
