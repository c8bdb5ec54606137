"""Numbers over seeds and over clients, as the report's tables and charts show them."""

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
"""Of a round, or several of them."""

MOST_POINTS = 200
"""Points of a curve: more cannot be seen."""


def paired(a: Method, b: Method) -> list[tuple[Run, Run]]:
    """Pairs of runs with the same seed and the same test data.

    Args:
        a: a method.
        b: the other one.
    """
    partners = {pairing_of(run): run for run in b.runs}
    found = [(run, partners.get(pairing_of(run))) for run in a.runs]
    return [(run, partner) for run, partner in found if partner is not None]


def pairing_of(run: Run) -> tuple[Any, str]:
    """What runs that are paired have in common: the seed and the test data; of unknown data a run has its own."""
    return seed_of(run), tested_on(run) or str(run.path)


def last_of_clients(run: Run, name: str = "") -> np.ndarray:
    """A number of each client at the last evaluation, float64 [m]; empty where there is none.

    Args:
        run: any.
        name: of an array in clients.npz; empty: the score on test data.
    """
    array = run.clients.get(name or run.score.column)
    return array[-1].astype(np.float64) if array is not None and len(array) else np.array([])


def of_honest(run: Run, values: np.ndarray) -> np.ndarray:
    """Return the values of the clients over which mean scores are taken.

    Args:
        run: any.
        values: of its clients, [..., m].
    """
    return values[..., honest(run, values.shape[-1])]


def last_scores(run: Run) -> np.ndarray:
    """Return the last scores of the honest clients with test data, float64 [k]; NaN where the loss is not finite."""
    known, losses = (of_honest(run, last_of_clients(run, name)) for name in ("", "test_loss"))
    return known[~np.isnan(known) | ~np.isnan(losses)] if len(losses) == len(known) else known[~np.isnan(known)]


def last_score(run: Run) -> float:
    """Mean score over clients on test data at the last evaluation; NaN where a client's loss is not finite."""
    return _over_clients(run).mean


def worst_tenth(run: Run) -> float:
    """Mean test score of the worst tenth of the clients at the last evaluation; NaN as in `last_score`."""
    return _over_clients(run).worst10


def _over_clients(run: Run) -> OverClients:
    known = torch.from_numpy(last_scores(run))
    return over_clients(known, bool(known.isnan().any()), run.score.higher_is_better)


def over_runs(number: Callable[[Run], float], runs: Sequence[Run]) -> Spread:
    """A score over those runs that have test data; NaN where a client's loss is not finite.

    Args:
        number: `last_score` or `worst_tenth`.
        runs: one a seed.
    """
    return spread_of_all([number(run) for run in runs if len(last_scores(run))])


def received(run: Run) -> float:
    """Bytes that a client received in the whole run, mean over clients; NaN where the run has not counted them."""
    return float(np.nansum(run.metrics["bytes_received"])) if "bytes_received" in run.metrics else math.nan


def models_a_round(run: Run) -> float:
    """Models that a client received in a round, mean over clients and rounds; NaN where the run has not counted them.

    Args:
        run: any.
    """
    counted = run.metrics.get("models_received", np.empty(0))
    counted = counted[~np.isnan(counted)]
    return float(counted.mean()) if len(counted) else math.nan


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


def from_one(round: int | np.integer) -> int:
    """The number of a round for people, who count from 1; files and code count from 0.

    Examples:
        >>> from_one(0)
        1
    """
    return int(round) + 1


def over_seeds(method: Method, column: str) -> dict[str, np.ndarray]:
    """A column of metrics.csv over the seeds of a method; a run that has ended counts as `held` says.

    Args:
        method: with a run for each seed.
        column: of metrics.csv.

    Returns:
        `round`, `mean`, `sd` (NaN with one seed) and `count` of the rounds in which a run has a number, thinned. The
        mean is NaN where the number of a run is not finite.
    """
    series = [known_numbers(run, column) for run in method.runs]
    rounds = sorted({int(r) for known in series for r in known})
    series = [held(run, known, rounds) for run, known in zip(method.runs, series, strict=True)]
    rounds = [rounds[i] for i in thinned(len(rounds))]
    spreads = [spread_of_all([known[r] for known in series if r in known]) for r in rounds]
    return {
        "round": np.array(rounds, dtype=np.int64),
        "mean": np.array([each.mean for each in spreads]),
        "sd": np.array([each.sd for each in spreads], dtype=np.float64),
        "count": np.array([each.count for each in spreads]),
    }


def held(run: Run, known: Mapping[int, Number], rounds: Sequence[int]) -> dict[int, Number]:
    """What is known of a run by round; after the end of a finished one, whose models stay as they are, its last number.

    Without it the end of a curve is a mean over those seeds alone that early stopping has let go on for longest.

    Args:
        run: any.
        known: numbers by round.
        rounds: of all runs of its method.
    """
    if not known or not is_finished(run):
        return dict(known)
    end, last = run.metrics["round"][-1], known[max(known)]
    return {**known, **{r: last for r in rounds if r > end}}


def known_numbers(run: Run, column: str) -> dict[int, float]:
    """Return a column of metrics.csv by round, without the rounds that have no number.

    A number may be infinite, or NaN in an evaluation in which a client's loss is not finite.

    Args:
        run: any.
        column: of metrics.csv.
    """
    values = run.metrics.get(column)
    if values is None:
        return {}
    there = ~np.isnan(values)
    split = next((split for split in _EVALUATED if column.startswith(f"{split}_")), "")
    losses = run.metrics.get(f"{split}_loss")
    if losses is not None:
        there |= np.isinf(losses)
    return {int(r): float(v) for r, v in zip(run.metrics["round"][there], values[there], strict=True)}


_EVALUATED = ("val", "test", "global_test")
"""The data on which an evaluation's columns are measured; each has a column of the loss."""
