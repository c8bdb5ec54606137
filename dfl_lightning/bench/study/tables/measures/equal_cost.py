"""The comparison of `dfl-study table --at-equal`: the test score when all rows have had the same cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dfl_lightning.bench.study.tables.measures.measure import Measure
from dfl_lightning.runs.reading import Run
from dfl_lightning.utils.errors import UserError
from dfl_lightning.utils.memory import size
from dfl_lightning.utils.score import Score


@dataclass(frozen=True)
class _Cost:
    """A cost of a client.

    Attributes:
        column: its column in metrics.csv.
        words: what is counted.
        text: function that formats an amount.
        remedy: what to do if a run has not recorded it.
    """

    column: str
    words: str
    text: Callable[[float], str] = "{:.3g}".format
    remedy: str = "its runs are of a version that did not count them; train them again"


COSTS = {
    "seconds": _Cost("simulated_seconds", "simulated seconds", remedy="give all rows a clock, such as Synchronous"),
    "bytes": _Cost("bytes_received", "received bytes", size),
    "trainings": _Cost("trainings", "trainings"),
}
"""Costs of a client by the name that the option has for them."""


@dataclass(frozen=True)
class ScoreAtEqualCost(Measure):
    """The test score of the last evaluation at the largest cost that all runs of a column and seed reach.

    Attributes:
        cost: one of `COSTS`.
        most: the compared cost of each run, by its folder.
    """

    cost: str = "seconds"
    most: dict[Path, float] = field(default_factory=dict, hash=False)

    def is_like(self, other: Measure) -> bool:
        """Return True if another measure compares at the same kind of cost."""
        return isinstance(other, ScoreAtEqualCost) and other.cost == self.cost

    def of_runs(self, runs: Mapping[int, Mapping[str, Path]]) -> ScoreAtEqualCost:
        """Return the measure with the largest cost that all runs of a column reach, for each seed.

        Args:
            runs: folders of the finished runs by seed and name of their cell.

        Raises:
            UserError: a run has not recorded the cost.
        """
        from dfl_lightning.bench.report.costs import largest_common_cost, spent

        cost, most = COSTS[self.cost], {}
        for of_seed in runs.values():
            read = {label: Run(folder) for label, folder in of_seed.items()}
            for label, run in read.items():
                if spent(run, cost.column) is None:
                    raise UserError(f"--at-equal {self.cost}: {label} has no {cost.words}; {cost.remedy}")
            common = largest_common_cost(read.values(), cost.column)
            most.update(dict.fromkeys(of_seed.values(), common))
        return replace(self, most=most)

    @property
    def about(self) -> str:
        """The description for a caption."""
        percent = ", in percent" if self.unit else ""
        better = "; the lowest is the best" if self.lower_is_better else ""
        return (
            f"test {self.score.label}, mean over clients, of the last evaluation within the {COSTS[self.cost].words} "
            f"of a client that all rows of a seed reach{percent}{better}"
        )

    def _value(self, summary: Mapping[str, Any], run: Path | None) -> float | None:
        from dfl_lightning.bench.report.costs import score_at_cost

        if run not in self.most or Score.read(summary).name != self.score.name:
            return None
        value = score_at_cost(Run(run), COSTS[self.cost].column, self.most[run])
        return None if value is None else self.factor * value


def read_equal_cost(cost: str) -> ScoreAtEqualCost:
    """Return the measure of `--at-equal`, before the runs of a table give the compared cost."""
    return ScoreAtEqualCost(f"at_equal_{cost}", cost=cost)


def compared_at(measures: Mapping[str, Measure]) -> Iterator[str]:
    """Say at which cost the rows of each column are compared; there is no sentence for other measures.

    Args:
        measures: measure by column.
    """
    parts = []
    for column, measure in measures.items():
        if isinstance(measure, ScoreAtEqualCost) and measure.most:
            text = COSTS[measure.cost].text
            ends = [text(end) for end in (min(measure.most.values()), max(measure.most.values()))]
            parts.append(f"{column} {' to '.join(dict.fromkeys(ends))}")
    if parts:
        words = next(COSTS[m.cost].words for m in measures.values() if isinstance(m, ScoreAtEqualCost))
        yield f"compared at these {words} of a client, from the seed with the fewest to the one with the most: " + (
            ", ".join(parts)
        )
