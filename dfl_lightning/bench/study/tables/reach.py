"""What `dfl-study table --reach` compares: rounds until the mean test score reaches a value, and what that cost."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dfl_lightning.bench.stats.statistics import rounded
from dfl_lightning.bench.study.tables.measure import Measure
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
        """Whether it is the score itself, which it is not."""
        return False

    @property
    def is_percent(self) -> bool:
        """Whether it is a share, which a number of rounds is not."""
        return False

    def of_task(self, score: Score) -> RoundsToReach:
        """Give the measure the score of a task; fewer rounds are better, whatever the score.

        Args:
            score: of the task.
        """
        return replace(self, score=score, lower_is_better=True)

    def is_like(self, other: Measure) -> bool:
        """Tell whether another measure counts the rounds to the same value.

        Args:
            other: such as that of published numbers.
        """
        return isinstance(other, RoundsToReach) and other.target == self.target

    @property
    def name(self) -> str:
        """What tables call it."""
        return f"rounds to {self.target:g}{self.score.unit}"

    @property
    def about(self) -> str:
        """What a caption says."""
        side = "at or above" if self.score.higher_is_better else "at or below"
        return (
            f"rounds until the test {self.score.label}, mean over clients, is {side} {self.target:g}{self.score.unit} "
            "in an evaluated round for the first time, and what a client has received by then; over the seeds that "
            "reached it; the lowest is the best"
        )

    def has_score(self, summary: Mapping[str, Any], run: Path | None) -> bool:
        """Tell whether a run has been evaluated on test data, so that it reaches the value or does not.

        Args:
            summary: the run's summary.json.
            run: its folder.
        """
        return Score.read(summary).name == self.score.name and any(row.get(self.score.column) for row in _rows(run))

    def bytes_until(self, summary: Mapping[str, Any], run: Path | None) -> float | None:
        """Return the bytes that a client has received when the value is reached, on average; None if never, or unknown.

        Args:
            summary: the run's summary.json.
            run: its folder.
        """
        found = self._until(summary, run)
        if found is None or "bytes_received" not in found[0]:
            return None
        return sum(float(row["bytes_received"] or 0.0) for row in found)

    def _value(self, summary: Mapping[str, Any], run: Path | None) -> float | None:
        found = self._until(summary, run)
        return None if found is None else float(int(found[-1]["round"]) + 1)

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
    """Make the measure of `--reach`.

    Args:
        value: of the option.

    Raises:
        UserError: the value is not finite.
    """
    if not math.isfinite(value):
        raise UserError(f"--reach {value:g}: give a finite value of the score, such as 90 for 90 %")
    return RoundsToReach("rounds_to_reach", target=value)


def require_one_score(target: float, scores: Mapping[str, Score]) -> None:
    """Refuse a value that is not one of the score of all columns.

    Args:
        target: of the option.
        scores: of the columns of which a cell is done.

    Raises:
        UserError: columns have several scores, or the value is none of a share in percent.
    """
    if len({(score.name, score.higher_is_better, score.percent) for score in scores.values()}) > 1:
        named = ", ".join(f"{column}: {score.label}" for column, score in scores.items())
        raise UserError(
            f"--reach {target:g}: the columns have several scores ({named}), so that one value does not suit all of "
            "them; give a study file with the columns of one score, and the same folder with --to"
        )
    if any(score.percent for score in scores.values()) and not 1 < target <= 100:
        instead = f"; for {100 * target:g} % give {100 * target:g}" if 0 < target <= 1 else ""
        raise UserError(f"--reach {target:g}: the score is in percent, from 1 to 100{instead}")


def partly_reached(places: Iterable[tuple[tuple[str, str], int, int]]) -> list[str]:
    """Name the places in which some seeds reach the value and others do not, which are compared with no other.

    Args:
        places: row and column, seeds that reached it, and seeds that are done.
    """
    found = [f"{row} in {column} ({n} of {m} seeds)" for (row, column), n, m in places if 0 < n < m]
    why = "a mean over the seeds that reached it leaves out the slowest"
    return [f"not compared with other rows, for {why}: {', '.join(found)}"] if found else []
