"""Data of the page's picker: every column of metrics.csv and every array of clients.npz, for each seed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dfl_lightning.bench.report.charts.colours import colour_places
from dfl_lightning.bench.report.charts.line_ends import short_names
from dfl_lightning.bench.report.comparable import for_charts
from dfl_lightning.bench.report.costs import SIMULATED
from dfl_lightning.bench.report.methods import Method, names_for_colours
from dfl_lightning.bench.report.over_seeds import MOST_POINTS, from_one, held, known_numbers, of_honest, thinned
from dfl_lightning.bench.report.page.sections import heading
from dfl_lightning.bench.report.page.sentences.limits import with_graphs
from dfl_lightning.runs.reading import Run
from dfl_lightning.utils.score import Score

_NUMBERS = 100_000
"""Largest number of values of all columns and runs of the page; with more, curves have fewer points."""

_LEAST_POINTS = 40
"""Least number of points of a curve, whatever the number of runs and columns."""

_OF_CLIENTS, _POINTS_OF_CLIENTS = 200_000, 50
"""Largest number of values of single clients, of all runs, and largest number of points of a client's curve."""

_LETTERS = (24, 11)
"""Largest numbers of letters of a method's name in the chart, on a wide and on a narrow screen."""

_DIGITS = 5
"""Significant digits of a value."""

QUANTILES = {"p10": 10, "median": 50, "p90": 90}
"""Percentiles over clients that are kept of each array of clients.npz, by their names on the page."""

WORDS = {
    "train_loss": "Mean loss per sample over the batches of the local training.",
    "neighbours": "Neighbours that a receiver selected, mean over receivers.",
    "active": "Number of active clients.",
    "models_received": "Models that a client received in the round.",
    "probes_received": "Of the received models, those that were not mixed, called probes.",
    "proxies_received": "Parts of models and other messages as large as them that a client received, called proxies.",
    "messages_received": "Messages that are neither models nor parts of them, such as a summary of data.",
    "bytes_received": "Bytes that a client received in the round.",
    "seconds": "Seconds of the round, with its evaluation.",
    "neighbour_precision": "Share of the chosen neighbours that are of the receiver's own ground-truth cluster.",
    "neighbour_recall": "Share of the receiver's own ground-truth cluster that it chose.",
    "friend_accuracy": "Share of the dropped clients that a client of their own cluster stood in for.",
    "substitution_error": "Squared length of the average update minus the one without dropouts.",
    "threshold": "Participation threshold: the least score with which a neighbour is chosen, mean over clients.",
    "consensus_distance": "Mean squared distance of the clients' models from the mean model.",
    "consensus_distance_relative": "Squared distance of the models from their mean, divided by its squared length.",
    "adversary_links": "Share of the links that honest clients chose that end at an adversary.",
    "adversary_weight": "Share of adversaries' models in the weights of honest clients' new models.",
    "diverged": "Clients whose training ended in NaN or infinity.",
    SIMULATED: "Simulated seconds from the start of the run to the end of the round.",
    "alpha": "Weight of the local model in the mixture with the global one.",
}
"""Sentences about columns, by their names."""

_OF_EVALUATIONS = {
    "val": "on the clients' validation data",
    "test": "on the clients' test data",
    "global_test": "of the server's model on the global test set",
    "merged_test": "of the mean of all models on the test data of all clients together",
}
_OVER_CLIENTS = {
    "std": "standard deviation over clients",
    "worst10": "mean of the worst tenth of the clients",
    "best10": "mean of the best tenth of the clients",
    "variance": "variance over clients",
    "adversaries": "mean over adversaries",
}


def columns_of_page(methods: Sequence[Method]) -> dict[str, Any]:
    """Return every column of metrics.csv and every array of clients.npz of all runs.

    Values are rounded to five digits, and curves are thinned so that all of them together stay small. A finished run
    keeps its last value until the last round of its method, as in all curves of the page.

    Args:
        methods: methods of the page, in its order.

    Returns:
        `tasks`, a name for each; `names`, the methods by the index of their colour; `rounds`, lists of rounds that
        curves share, counted from 1; `about`, a title and a sentence for each column; and `methods`, an entry for each
        method. It has its `name`, and `short`, the name on a wide and on a narrow screen. Its `columns` and `clients`
        have, by name, `at` (the index of its rounds) and a list of values for each run, `costs` has what had been spent
        in these rounds.
    """
    drawn = for_charts(methods)
    tasks = sorted({method.task for method in drawn})
    shared: dict[tuple[int, ...], int] = {}
    most = _points(drawn)
    shown = {run.path for _, run in with_graphs(methods)}
    per_client = sum(_arrays(run) * (run.num_clients or 0) for m in drawn for run in m.runs if run.path in shown)
    points = min(_POINTS_OF_CLIENTS, _OF_CLIENTS // max(1, per_client))
    entries: list[dict[str, Any]] = []
    short = [short_names([method.name for method in drawn], letters) for letters in _LETTERS]
    for method in drawn:
        columns = {name: _column(method, name, most, shared) for name in _names(method, "metrics")}
        kept = {name: column for name, column in columns.items() if column is not None}
        clients = {name: _clients(method, name, most, points, shown, shared) for name in _names(method, "clients")}
        at = {column["at"] for column in kept.values()} | {column["at"] for column in clients.values()}
        rounds = {index: rounds for rounds, index in shared.items()}
        entries.append(
            {
                "name": method.name,
                "task": tasks.index(method.task),
                "short": [of_width[method.name] for of_width in short],
                "aside": method.aside,
                "seeds": method.seeds,
                "columns": kept,
                "clients": clients,
                "costs": {str(index): _costs(method, rounds[index]) for index in sorted(at)},
            }
        )
    names = dict.fromkeys(name for entry in entries for kind in ("columns", "clients") for name in entry[kind])
    return {
        "tasks": [heading([m for m in drawn if m.task == task], drawn) for task in tasks],
        "names": colour_places(names_for_colours(drawn)),
        "first": "train_loss" if "train_loss" in names else drawn[0].score.column,
        "rounds": [[from_one(r) for r in rounds] for rounds in shared],
        "about": {name: about(name, drawn) for name in names},
        "methods": entries,
    }


def about(name: str, methods: Sequence[Method]) -> dict[str, Any]:
    """Describe a column: the factor to the unit of charts, the title of an axis, and a sentence, which may be empty.

    Args:
        name: column of metrics.csv, or array of clients.npz.
        methods: methods of the page.
    """
    score = methods[0].score
    is_share = score.is_share(name)
    words = WORDS.get(name, "") or _of_evaluation(name)
    return {"factor": 100 if is_share else 1, "title": f"{name}{', %' if is_share else ''}", "words": words}


def _of_evaluation(name: str) -> str:
    """Describe a column of an evaluation, such as `val_loss` or `test_acc_worst10`; empty for other columns."""
    for split in sorted(_OF_EVALUATIONS, key=len, reverse=True):
        if name.startswith(f"{split}_"):
            number, _, which = name.removeprefix(f"{split}_").rpartition("_")
            if which not in _OVER_CLIENTS or not number:
                number, which = name.removeprefix(f"{split}_"), ""
            over = _OVER_CLIENTS.get(which, "" if "_test" in split else "mean over clients")
            words = f"{Score(name=number).label} {_OF_EVALUATIONS[split]}{f', {over}' if over else ''}."
            return f"{words[:1].upper()}{words[1:]}"
    return ""


def _names(method: Method, table: str) -> list[str]:
    """List the columns of a table of a method's runs, without those of the rounds."""
    names = dict.fromkeys(name for run in method.runs for name in getattr(run, table))
    return [name for name in names if name not in ("round", "rounds")]


def _arrays(run: Run) -> int:
    return sum(name != "rounds" for name in run.clients)


def _points(methods: Sequence[Method]) -> int:
    """Return the largest number of points of a curve, with which all columns of all runs stay small."""
    curves = sum(len(run.metrics) + len(QUANTILES) * _arrays(run) for method in methods for run in method.runs)
    return max(_LEAST_POINTS, min(MOST_POINTS, _NUMBERS // max(1, curves)))


def _shared(rounds: Sequence[int], shared: dict[tuple[int, ...], int]) -> int:
    return shared.setdefault(tuple(rounds), len(shared))


def _column(method: Method, name: str, most: int, shared: dict[tuple[int, ...], int]) -> dict[str, Any] | None:
    """Return the rounds and values of a column of metrics.csv; None if no run has a number in it."""
    series = [known_numbers(run, name) for run in method.runs]
    rounds = sorted({r for values in series for r in values})
    if not rounds:
        return None
    series = [held(run, values, rounds) for run, values in zip(method.runs, series, strict=True)]
    kept = [rounds[i] for i in thinned(len(rounds), most)]
    return {"at": _shared(kept, shared), "runs": [_numbers(values, kept) for values in series]}


def _clients(
    method: Method, name: str, most: int, points: int, shown: set[Any], shared: dict[tuple[int, ...], int]
) -> dict[str, Any]:
    """Return percentiles over clients of an array of clients.npz, and the values of each client of the shown runs."""
    rounds = sorted({int(r) for run in method.runs if name in run.clients for r in run.clients["rounds"]})
    kept = [rounds[i] for i in thinned(len(rounds), most)]
    quantiles: dict[str, list[Any]] = {key: [] for key in QUANTILES}
    each: dict[str, Any] = {}
    for number, run in enumerate(method.runs):
        array = run.clients.get(name)
        of_rounds = {} if array is None else dict(zip(run.clients["rounds"].astype(int).tolist(), array, strict=True))
        of_run = {r: _percentiles(of_honest(run, values)) for r, values in of_rounds.items()}
        whole = held(run, {r: values for r, values in of_run.items() if values is not None}, rounds)
        for place, key in enumerate(QUANTILES):
            quantiles[key].append(_numbers({r: values[place] for r, values in whole.items()}, kept))
        if run.path in shown and of_rounds and points >= 2:
            own = sorted(of_rounds)
            own = [own[i] for i in thinned(len(own), points)]
            values = np.stack([of_rounds[r] for r in own]).astype(np.float64)
            each[str(number)] = {"at": _shared(own, shared), "clients": [list(map(_number, row)) for row in values.T]}
    return {"at": _shared(kept, shared), "quantiles": quantiles, "each": each}


def _percentiles(values: np.ndarray) -> list[float] | None:
    known = values[np.isfinite(values)].astype(np.float64)
    return np.percentile(known, list(QUANTILES.values())).tolist() if len(known) else None


def _costs(method: Method, rounds: Sequence[int]) -> dict[str, list[list[float | None]]]:
    """Return what each run had spent by the end of each round: megabytes, simulated and measured seconds."""
    kinds = {
        "mb": [_spent(run, "bytes_received", 1e-6) for run in method.runs],
        "simulated": [_spent(run, SIMULATED, 1.0) for run in method.runs],
        "seconds": [_spent(run, "seconds", 1.0) for run in method.runs],
    }
    found = {}
    for kind, of_runs in kinds.items():
        whole = [held(run, spent, rounds) for run, spent in zip(method.runs, of_runs, strict=True)]
        if any(whole):
            found[kind] = [_numbers(spent, rounds) for spent in whole]
    return found


def _spent(run: Run, column: str, unit: float) -> dict[int, float]:
    """Return the sum of a column up to each round; the simulated seconds are sums already."""
    if column not in run.metrics or np.isnan(run.metrics[column]).all():
        return {}
    values = run.metrics[column] if column == SIMULATED else np.nancumsum(run.metrics[column])
    return {int(r): float(v) * unit for r, v in zip(run.metrics["round"], values, strict=True)}


def _numbers(values: Mapping[int, float], rounds: Sequence[int]) -> list[float | None]:
    return [_number(values.get(r, math.nan)) for r in rounds]


def _number(value: float) -> float | None:
    return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None
