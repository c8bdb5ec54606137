"""Numbers over seeds and over clients, as the report's tables and charts show them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from dfl_lightning.report.methods import Method, seed_of, tested_on
from dfl_lightning.report.reading import Run

MOST_POINTS = 200
"""Points of a curve: more cannot be seen."""
ROUNDING = 1e-12
"""By how much of themselves two equal numbers may differ."""


@dataclass(frozen=True)
class Spread:
    """A mean over seeds.

    Attributes:
        mean: NaN where nothing is known.
        sd: standard deviation (n - 1); NaN with one seed.
        count: seeds.
    """

    mean: float
    sd: float
    count: int


@dataclass(frozen=True)
class PairedDifference:
    """The mean of paired differences, with its 95 % interval (Student's t); NaN bounds with one pair."""

    mean: float
    low: float
    high: float
    count: int

    @property
    def is_clear(self) -> bool:
        """Whether the interval leaves out 0."""
        return self.count > 1 and (self.low > 0 or self.high < 0)


def spread(values: list[float]) -> Spread:
    """Mean and standard deviation of what is known.

    Examples:
        >>> spread([1.0, 2.0, 3.0])
        Spread(mean=2.0, sd=1.0, count=3)
    """
    known = np.array([value for value in values if math.isfinite(value)])
    if not len(known):
        return Spread(math.nan, math.nan, 0)
    sd = float(known.std(ddof=1)) if len(known) > 1 else math.nan
    return Spread(float(known.mean()), sd, len(known))


def difference(pairs: list[tuple[float, float]]) -> PairedDifference | None:
    """Of the first less the second of each pair; None without pairs.

    Two means of the same accuracies may differ by rounding, which is no difference.

    Examples:
        >>> difference([(3.0, 1.0), (4.0, 2.0)])
        PairedDifference(mean=2.0, low=2.0, high=2.0, count=2)
        >>> difference([(0.1 + 0.2, 0.3), (0.7 + 0.1, 0.8)]).is_clear
        False
    """
    from scipy.special import stdtrit  # the quantile of scipy.stats.t, whose import takes a second

    known = [(a, b) for a, b in pairs if math.isfinite(a) and math.isfinite(b)]
    deltas = np.array([0.0 if math.isclose(a, b, rel_tol=ROUNDING) else a - b for a, b in known])
    if not len(deltas):
        return None
    mean, n = float(deltas.mean()), len(deltas)
    if n == 1:
        return PairedDifference(mean, math.nan, math.nan, 1)
    half = float(stdtrit(n - 1, 0.975) * deltas.std(ddof=1) / math.sqrt(n))
    return PairedDifference(mean, mean - half, mean + half, n)


def paired(a: Method, b: Method) -> list[tuple[Run, Run]]:
    """Pairs of runs with the same seed and the same test images.

    Args:
        a: a method.
        b: the other one.
    """
    partners = {(seed_of(run), tested_on(run)): run for run in b.runs if tested_on(run)}
    found = [(run, partners.get((seed_of(run), tested_on(run)))) for run in a.runs]
    return [(run, partner) for run, partner in found if partner is not None]


def last_of_clients(run: Run, name: str = "test_acc") -> np.ndarray:
    """A number of each client at the last evaluation, float64 [m]; empty where there is none.

    Args:
        run: any.
        name: of an array in clients.npz.
    """
    array = run.clients.get(name)
    return array[-1].astype(np.float64) if array is not None and len(array) else np.array([])


def accuracies(run: Run) -> np.ndarray:
    """Last test accuracies of the clients with test data, float64 [k]; NaN where the loss is not finite."""
    known, losses = last_of_clients(run), last_of_clients(run, "test_loss")
    return known[~np.isnan(known) | ~np.isnan(losses)] if len(losses) == len(known) else known[~np.isnan(known)]


def accuracy(run: Run) -> float:
    """Mean test accuracy over clients at the last evaluation; NaN where a client's loss is not finite."""
    known = accuracies(run)
    return float(known.mean()) if len(known) else math.nan


def worst_tenth(run: Run) -> float:
    """Mean test accuracy of the worst tenth of the clients at the last evaluation; NaN as in `accuracy`."""
    known = np.sort(accuracies(run))
    return float(known[: math.ceil(len(known) / 10)].mean()) if len(known) and not np.isnan(known).any() else math.nan


def over_runs(number: Callable[[Run], float], runs: Sequence[Run]) -> Spread:
    """An accuracy over seeds; NaN where one run has none, for a loss is not finite: others alone would look better.

    Args:
        number: `accuracy` or `worst_tenth`.
        runs: one a seed.
    """
    broken = any(np.isnan(accuracies(run)).any() for run in runs)
    return Spread(math.nan, math.nan, len(runs)) if broken else spread([number(run) for run in runs])


def received(run: Run) -> float:
    """Bytes that a client received in the whole run, mean over clients."""
    return float(np.nansum(run.metrics.get("bytes_received", np.array([math.nan]))))


def seconds(run: Run) -> float:
    """Seconds that the rounds took."""
    return float(np.nansum(run.metrics.get("seconds", np.array([math.nan]))))


def thinned(length: int, most: int = MOST_POINTS) -> np.ndarray:
    """Indices of evenly spaced points of a curve, the first and the last among them.

    Args:
        length: points of the curve.
        most: points to keep.

    Examples:
        >>> thinned(5, 3)
        array([0, 2, 4])
    """
    if length <= most:
        return np.arange(length)
    return np.unique(np.round(np.linspace(0, length - 1, most)).astype(np.int64))


def over_seeds(method: Method, column: str) -> dict[str, np.ndarray]:
    """A column of metrics.csv over the seeds of a method.

    Args:
        method: with a run for each seed.
        column: of metrics.csv.

    Returns:
        `round`, `mean`, `sd` (NaN with one seed) and `count` of the rounds in which a run has a number, thinned.
    """
    series = [_known(run, column) for run in method.runs]
    rounds = sorted({int(r) for known in series for r in known})
    rounds = [rounds[i] for i in thinned(len(rounds))]
    cells = [[known[r] for known in series if r in known] for r in rounds]
    return {
        "round": np.array(rounds, dtype=np.int64),
        "mean": np.array([np.mean(c) for c in cells]),
        "sd": np.array([np.std(c, ddof=1) if len(c) > 1 else math.nan for c in cells]),
        "count": np.array([len(c) for c in cells]),
    }


def _known(run: Run, column: str) -> dict[int, float]:
    values = run.metrics.get(column)
    if values is None:
        return {}
    return {int(r): float(v) for r, v in zip(run.metrics["round"], values, strict=True) if math.isfinite(v)}
