"""The traffic that a client receives in a round, which every table of a study shows next to the scores."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from dfl_lightning.bench.study.cells.cell_state import CellState
from dfl_lightning.runs.tables import read_metrics
from dfl_lightning.utils.memory import size

HEADING = "received per client and round"
"""The heading of the column."""

ABOUT = "received: models, those that were only tried included, and bytes, mean over clients, rounds and seeds"
"""The description for a caption."""


@dataclass(frozen=True)
class RoundTraffic:
    """The traffic that a client of a row and column receives in a round, mean over clients, rounds and seeds.

    Attributes:
        models: number of models; None if no run has counted them.
        bytes: bytes of models and of everything else; None if no run has counted them.
    """

    models: float | None = None
    bytes: float | None = None


def received_by(states: Iterable[CellState]) -> RoundTraffic:
    """Read what a client receives in a round, from the finished cells of a row and column."""
    runs = [read_metrics(state.run / "metrics.csv") for state in states if state.is_done and state.run is not None]
    return RoundTraffic(_over_seeds(runs, "models_received"), _over_seeds(runs, "bytes_received"))


def _over_seeds(runs: Sequence[Sequence[Mapping[str, str]]], column: str) -> float | None:
    """Return the mean over runs of a column's mean over the rounds that have it; None if no run has it."""
    values_by_run = [[float(row[column]) for row in rows if row.get(column)] for rows in runs]
    return _mean([mean for values in values_by_run if (mean := _mean(values)) is not None])


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def in_words(places: Iterable[RoundTraffic]) -> str:
    """Describe what a client of a row receives: a number, or a range if the row's places differ; empty if unknown.

    Examples:
        >>> one, other = RoundTraffic(5.0, 13000.0), RoundTraffic(19.5, 50700.0)
        >>> in_words([one, RoundTraffic()]), in_words([one, other])
        ('5 models, 13.0 kB', '5 to 19.5 models, 13.0 to 50.7 kB')
    """
    known = list(places)
    models = sorted(one.models for one in known if one.models is not None)
    numbers = sorted(one.bytes for one in known if one.bytes is not None)
    parts = []
    if models:
        words = _range(_number(models[0]), _number(models[-1]))
        parts.append(f"{words} {'model' if words == '1' else 'models'}")
    if numbers:
        (low, unit), (high, of_high) = (size(number).split() for number in (numbers[0], numbers[-1]))
        parts.append(f"{_range(low if unit == of_high else f'{low} {unit}', high)} {of_high}")
    return ", ".join(parts)


def _range(low: str, high: str) -> str:
    return low if low == high else f"{low} to {high}"


def _number(value: float) -> str:
    """Format a number of models with one decimal, none if it is whole, and with two significant digits below 0.95."""
    text = f"{value:.2g}" if 0 < value < 0.95 else f"{value:,.1f}"
    return text.removesuffix(".0")
