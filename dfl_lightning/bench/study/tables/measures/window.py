"""The comparison of `dfl-study table --after --until`: a column of metrics.csv in a part of the rounds."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from pathlib import Path

from dfl_lightning.bench.study.tables.measures.measure import BEST_VAL, Measure
from dfl_lightning.utils.errors import UserError


@dataclass(frozen=True)
class InWindow(Measure):
    """A column of metrics.csv, reduced to one number over the rounds of a window.

    Attributes:
        after: the last round before the window, 0-based as in metrics.csv; -1: the window begins with the first round.
        until: the last round of the window; infinite: it has no end.
    """

    after: int = -1
    until: float = math.inf

    def is_like(self, other: Measure) -> bool:
        """Return True if another measure is the same column in the same window."""
        same = isinstance(other, InWindow) and (other.after, other.until) == (self.after, self.until)
        return same and super().is_like(other)

    @property
    def window(self) -> str:
        """The window in words, 0-based as in metrics.csv."""
        end = "and later" if self.until == math.inf else f"to {self.until}"
        return f"rounds {self.after + 1} {end}"

    @property
    def name(self) -> str:
        """The name in tables."""
        return f"{self.key}, {self.window}"

    @property
    def about(self) -> str:
        """The description for a caption."""
        return f"{super().about}; {self.window} of metrics.csv, which counts from 0"

    def rows(self, run: Path | None) -> list[dict[str, str]]:
        """Return the lines of a run's metrics.csv in the window."""
        return [row for row in super().rows(run) if self.after < int(row["round"]) <= self.until]


def in_window(measure: Measure | None, after: int | None, until: int | None, over_rounds: str | None) -> Measure | None:
    """Return the measure that other options name, over the rounds of `--after` and `--until` only.

    Args:
        measure: what the other options name.
        after: value of `--after`: rounds up to this one do not count.
        until: value of `--until`: rounds after this one do not count.
        over_rounds: value of `--over-rounds`; in a window the default is the mean.

    Raises:
        UserError: there is a window, and it is empty, the measure is not a column, or one round of all is asked for.
    """
    if after is None and until is None:
        return measure
    if measure is None or type(measure) is not Measure or measure.is_score:
        raise UserError("--after and --until choose rounds of a column; name one, for example --number test_acc")
    if over_rounds == BEST_VAL:
        raise UserError("--over-rounds best_val takes one round of all; drop it, or --after and --until")
    for option, value in (("--after", after), ("--until", until)):
        if value is not None and value < 0:
            raise UserError(f"{option} {value}: it is a round of metrics.csv, 0 or more")
    if after is not None and until is not None and until <= after:
        raise UserError(
            f"--after {after} --until {until}: there is no round after {after} and up to {until}; "
            f"give --until {after + 1} or more"
        )
    given = {one.name: getattr(measure, one.name) for one in fields(measure)} | {"over_rounds": over_rounds or "mean"}
    return InWindow(**given, after=-1 if after is None else after, until=math.inf if until is None else until)
