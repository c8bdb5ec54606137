"""Statistics over seeds and over clients for the tables and charts of reports."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import torch

from dfl_lightning.bench.report.attack import honest
from dfl_lightning.bench.report.methods import Method, is_finished, seed_of, tested_on
from dfl_lightning.bench.stats.statistics import Spread, spread_of_all
from dfl_lightning.functional import OverClients, over_clients
from dfl_lightning.runs.reading import Run

Number = TypeVar("Number")
"""Type of the value of a round: a number, or several numbers."""

MOST_POINTS = 200
"""Largest number of points of a curve, since more cannot be seen."""


def paired(a: Method, b: Method) -> list[tuple[Run, Run]]:
    """Match the runs of two methods that have the same seed and the same test data, as pairs (run of a, run of b)."""
    partners = {pairing_of(run): run for run in b.runs}
    pairs = [(run, partners.get(pairing_of(run))) for run in a.runs]
    return [(run, partner) for run, partner in pairs if partner is not None]


def pairing_of(run: Run) -> tuple[Any, str]:
    """Return the key that paired runs have in common: the seed and a hash of the test data.

    A run whose test data are unknown has its folder instead of the hash, so that it is paired with no other run.
    """
    return seed_of(run), tested_on(run) or str(run.path)


def last_of_clients(run: Run, name: str = "") -> np.ndarray:
    """Return a value of each client at the last evaluation, float64 [m]; an empty array if the run has none.

    Args:
        run: finished or not.
        name: name of an array in clients.npz; default: the score on test data.
    """
    array = run.clients.get(name or run.score.column)
    return array[-1].astype(np.float64) if array is not None and len(array) else np.array([])


def of_honest(run: Run, values: np.ndarray) -> np.ndarray:
    """Return the values of the clients over which mean scores are taken: the honest ones, or all if none is honest.

    Args:
        run: finished or not.
        values: values of its m clients, [..., m].
    """
    return values[..., honest(run, values.shape[-1])]


def last_scores(run: Run) -> np.ndarray:
    """Return the last scores of the k honest clients with test data for which the score is defined, float64 [k].

    A score is NaN if the client's loss is not finite.
    """
    scores, losses = (of_honest(run, last_of_clients(run, name)) for name in ("", "test_loss"))
    return scores[~np.isnan(scores) | np.isinf(losses)] if len(losses) == len(scores) else scores[~np.isnan(scores)]


def last_score(run: Run) -> float:
    """Compute the mean test score over honest clients at the last evaluation; NaN if a client's loss is not finite."""
    return _over_clients(run).mean


def worst_tenth(run: Run) -> float:
    """Compute the mean test score of the worst tenth of the clients at the last evaluation; NaN as in `last_score`."""
    return _over_clients(run).worst10


def _over_clients(run: Run) -> OverClients:
    scores = torch.from_numpy(last_scores(run))
    return over_clients(scores, bool(scores.isnan().any()), run.score.higher_is_better)


def over_runs(number: Callable[[Run], float], runs: Sequence[Run]) -> Spread:
    """Compute mean and standard deviation of a score over the runs with test data; NaN if a run's score is not finite.

    Args:
        number: `last_score` or `worst_tenth`.
        runs: one for each seed.
    """
    return spread_of_all([number(run) for run in runs if len(last_scores(run))])


def received(run: Run) -> float:
    """Return the bytes received by a client in the whole run, mean over clients; NaN if they were not counted."""
    return float(np.nansum(run.metrics["bytes_received"])) if "bytes_received" in run.metrics else math.nan


def models_a_round(run: Run) -> float:
    """Return the models received by a client in a round, mean over clients and rounds; NaN if they were not counted."""
    counted = run.metrics.get("models_received", np.empty(0))
    counted = counted[~np.isnan(counted)]
    return float(counted.mean()) if len(counted) else math.nan


def seconds(run: Run) -> float:
    """Sum the seconds of all rounds; 0 if the run has not measured them."""
    return float(np.nansum(run.metrics.get("seconds", np.array([math.nan]))))


def thinned(length: int, most: int = MOST_POINTS) -> np.ndarray:
    """Choose evenly spaced points of a curve, including the first and the last, and return their indices.

    Args:
        length: number of points of the curve.
        most: number of points to keep.

    Examples:
        >>> thinned(5, 3)
        array([0, 2, 4])
    """
    if length <= most:
        return np.arange(length)
    return np.unique(np.round(np.linspace(0, length - 1, most)).astype(np.int64))


def from_one(round: int | np.integer) -> int:
    """Return the number of a round for people, counted from 1; files and code count from 0.

    Examples:
        >>> from_one(0)
        1
    """
    return int(round) + 1


def over_seeds(method: Method, column: str) -> dict[str, np.ndarray]:
    """Compute mean and standard deviation over seeds of a column of metrics.csv, by round.

    A finished run keeps its last value until the last round of all runs, see `held`.

    Args:
        method: with a run for each seed.
        column: column of metrics.csv.

    Returns:
        Arrays `round` (0-based), `mean`, `sd` (NaN with one seed), `count` (runs with a value) and `runs` (the values
        of each run, [rounds, runs], NaN where there is none), over an even choice of at most `MOST_POINTS` rounds. The
        mean is NaN if the value of a run is not finite.
    """
    series = [known_numbers(run, column) for run in method.runs]
    rounds = sorted({int(r) for values in series for r in values})
    series = [held(run, values, rounds) for run, values in zip(method.runs, series, strict=True)]
    rounds = [rounds[i] for i in thinned(len(rounds))]
    spreads = [spread_of_all([values[r] for values in series if r in values]) for r in rounds]
    return {
        "round": np.array(rounds, dtype=np.int64),
        "mean": np.array([each.mean for each in spreads]),
        "sd": np.array([each.sd for each in spreads], dtype=np.float64),
        "count": np.array([each.count for each in spreads]),
        "runs": np.array([[values.get(r, math.nan) for values in series] for r in rounds]).reshape(-1, len(series)),
    }


def held(run: Run, known: Mapping[int, Number], rounds: Sequence[int]) -> dict[int, Number]:
    """Return values by round; pad a finished run with its last value, since its models no longer change.

    Without padding, the end of a curve would be a mean over only those seeds that early stopping ended last.

    Args:
        run: finished or not.
        known: values of the run by round.
        rounds: all rounds in which a run of the method has a value.
    """
    if not known or not is_finished(run):
        return dict(known)
    end, last = run.metrics["round"][-1], known[max(known)]
    return {**known, **{r: last for r in rounds if r > end}}


def known_numbers(run: Run, column: str) -> dict[int, float]:
    """Return a column of metrics.csv by round, without the rounds that have no value.

    A value may be infinite, or NaN in an evaluation in which a client's loss is not finite.

    Args:
        run: finished or not.
        column: column of metrics.csv.
    """
    values = run.metrics.get(column)
    if values is None:
        return {}
    has_value = ~np.isnan(values)
    split = next((split for split in _EVALUATED if column.startswith(f"{split}_")), "")
    losses = run.metrics.get(f"{split}_loss")
    if losses is not None:
        has_value |= np.isinf(losses)
    return {int(r): float(v) for r, v in zip(run.metrics["round"][has_value], values[has_value], strict=True)}


_EVALUATED = ("val", "test", "global_test")
"""Prefixes of the columns of evaluations, by data; each prefix has a column of the loss."""
