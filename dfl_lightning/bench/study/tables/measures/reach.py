"""The comparison of `dfl-study table --reach`: rounds until the mean test score reaches a value, and their cost."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dfl_lightning.bench.stats.statistics import rounded
from dfl_lightning.bench.study.tables.measures.measure import Measure
from dfl_lightning.runs.tables import read_metrics
from dfl_lightning.utils.errors import UserError
from dfl_lightning.utils.score import Score


@dataclass(frozen=True)
class RoundsToReach(Measure):
    """The number of rounds until the mean test score of a run reaches a value for the first time.

    Attributes:
        target: the value, in the unit of the table.
    """

    target: float = math.nan

    @property
    def is_score(self) -> bool:
        """False: a number of rounds is not a score."""
        return False

    @property
    def is_percent(self) -> bool:
        """False: a number of rounds is not a share."""
        return False

    def of_task(self, score: Score) -> RoundsToReach:
        """Return the measure with the score of a task; fewer rounds are better, whatever the score."""
        return replace(self, score=score, lower_is_better=True)

    def is_like(self, other: Measure) -> bool:
        """Return True if another measure counts the rounds to the same value."""
        return isinstance(other, RoundsToReach) and other.target == self.target

    @property
    def name(self) -> str:
        """The name in tables."""
        return f"rounds to {self.target:g}{self.score.unit}"

    @property
    def about(self) -> str:
        """The description for a caption."""
        side = "at or above" if self.score.higher_is_better else "at or below"
        return (
            f"rounds until the test {self.score.label}, mean over clients, is {side} {self.target:g}{self.score.unit} "
            "in an evaluated round for the first time, and what a client has received by then; over the seeds that "
            "reached it; the lowest is the best"
        )

    def has_score(self, summary: Mapping[str, Any], run: Path | None) -> bool:
        """Return True if a run was evaluated on test data, so that it is known whether it reaches the value."""
        return Score.read(summary).name == self.score.name and any(row.get(self.score.column) for row in _rows(run))

    def bytes_until(self, summary: Mapping[str, Any], run: Path | None) -> float | None:
        """Return the mean bytes that a client has received when the value is reached; None if never, or unknown."""
        rows = self._until(summary, run)
        if rows is None or "bytes_received" not in rows[0]:
            return None
        return sum(float(row["bytes_received"] or 0.0) for row in rows)

    def _value(self, summary: Mapping[str, Any], run: Path | None) -> float | None:
        rows = self._until(summary, run)
        return None if rows is None else float(int(rows[-1]["round"]) + 1)

    def _until(self, summary: Mapping[str, Any], run: Path | None) -> list[dict[str, str]] | None:
        """Return the rows of metrics.csv up to the round that reaches the value; None if no round does."""
        if Score.read(summary).name != self.score.name:
            return None
        rows, target = _rows(run), self.score.merit(rounded(self.target))
        for at, row in enumerate(rows):
            value = row.get(self.score.column)
            if value and self.score.merit(rounded(self.score.factor * float(value))) >= target:
                return rows[: at + 1]
        return None


def _rows(run: Path | None) -> list[dict[str, str]]:
    return [] if run is None else read_metrics(run / "metrics.csv")


def read_reach(value: float) -> RoundsToReach:
    """Return the measure of `--reach`, for a value in the unit of the table.

    Raises:
        UserError: the value is not finite.
    """
    if not math.isfinite(value):
        raise UserError(f"--reach {value:g}: give a finite value of the score, such as 90 for 90 %")
    return RoundsToReach("rounds_to_reach", target=value)


def require_one_score(target: float, scores: Mapping[str, Score]) -> None:
    """Raise if one value does not suit the scores of all columns.

    Args:
        target: value of `--reach`.
        scores: score by column, for the columns with a finished cell.

    Raises:
        UserError: the columns have several kinds of scores, or the score is in percent and the value is not.
    """
    if len({(score.name, score.higher_is_better, score.percent) for score in scores.values()}) > 1:
        named = ", ".join(f"{column}: {score.label}" for column, score in scores.items())
        raise UserError(
            f"--reach {target:g}: the columns have several scores ({named}), so that one value does not suit all of "
            "them; give a study file with the columns of one score, and the same folder with --folder"
        )
    if any(score.percent for score in scores.values()) and not 1 < target <= 100:
        instead = f"; for {100 * target:g} % give {100 * target:g}" if 0 < target <= 1 else ""
        raise UserError(f"--reach {target:g}: the score is in percent, from 1 to 100{instead}")


def partly_reached(places: Iterable[tuple[tuple[str, str], int, int]]) -> list[str]:
    """Name the places in which only some seeds reach the value, which are not compared with others.

    Args:
        places: row and column, number of seeds that reached the value, and number of finished seeds.
    """
    named = [f"{row} in {column} ({n} of {m} seeds)" for (row, column), n, m in places if 0 < n < m]
    why = "a mean over the seeds that reached it leaves out the slowest"
    return [f"not compared with other rows, for {why}: {', '.join(named)}"] if named else []
