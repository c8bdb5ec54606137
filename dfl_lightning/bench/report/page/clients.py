"""Each client of a run, as the page shows a single one: its score over rounds, its samples, and whom it chose.

Runs of the same seed and test data have the same clients, so that the page finds a client's place in each of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from dfl_lightning.bench.report.charts.colours import colour_places
from dfl_lightning.bench.report.charts.over_run import over_run
from dfl_lightning.bench.report.comparable import best_first
from dfl_lightning.bench.report.methods import Method, names_for_colours, seed_of
from dfl_lightning.bench.report.network import number_of_nodes
from dfl_lightning.bench.report.over_seeds import from_one, last_of_clients, pairing_of, thinned
from dfl_lightning.runs.reading import Run
from dfl_lightning.utils.errors import UserError

MOST_CLIENTS = 1000
"""Of a run whose clients are shown one by one."""

_MOST_POINTS, _NUMBERS = 50, 20_000
"""Points of a client's curve, and of all curves of a run."""

_MOST_SENDERS, _SENDERS = 12, 2_400
"""Senders that are listed of a client, and of all clients of a run, at most; three of each in any case."""

_COUNTED = 100_000
"""Numbers of samples by class, or by interval of the target, of all clients of a run, at most."""

_STEPS = 1000
"""Into which the range of a score without a unit of its own is divided."""


def client_entries(methods: Sequence[Method], shown: Sequence[Run]) -> list[dict[str, Any]]:
    """What the page knows of the clients of each run, in the order of its tables, the best method first.

    Args:
        methods: of the page.
        shown: the runs that can be chosen on the page; these, and those in which the same clients train alone, have
            curves.

    Returns:
        An entry a run: `path` (to be taken out), `method`, `name`, `seed`, `task`, `data` (equal where the clients
        are), `local` and `last`, the last score of each client; and with curves `rounds`, `unit`, `curves`, `samples`,
        `counted`, `about`, `received` or `mixed`.
    """
    places: dict[tuple[Any, ...], int] = {}
    partners = {pairing_of(run) for run in shown}
    found = []
    for method in _in_order(methods):
        for run in method.runs:
            last = last_of_clients(run)
            if not len(last) or len(last) > MOST_CLIENTS:
                continue
            clients = pairing_of(run)
            entry = {
                "path": run.path,
                "method": method.full_name,
                "name": method.name,
                "seed": seed_of(run),
                "task": method.task,
                "data": places.setdefault((method.task, *clients), len(places)),
                "local": method.is_local,
                "last": [_number(value * run.score.factor) for value in last],
            }
            if run in shown or (method.is_local and clients in partners):
                entry |= curves(run)
            if run in shown:
                entry |= {"samples": samples(run), "counted": counted(run), "about": about(run), **links(run)}
            found.append(entry)
    return found


def clients_on_page(methods: Sequence[Method], linked: Sequence[tuple[Run, dict[str, Any]]]) -> dict[str, Any]:
    """The clients of all runs, and in the entry of each run that can be chosen, where its clients are.

    Args:
        methods: of the page.
        linked: the runs that can be chosen, and their entries, which get a number `clients` where they are known.
    """
    found = client_entries(methods, [run for run, _ in linked])
    numbers = {entry.pop("path"): at for at, entry in enumerate(found)}
    tables: list[dict[str, Any]] = []
    for entry in found:
        table = entry.pop("counted", None)
        if table is not None:  # runs of one seed have the same
            if table not in tables:
                tables.append(table)
            entry["counted"] = tables.index(table)
    for run, entry in linked:
        if run.path in numbers:
            entry["clients"] = numbers[run.path]
    return {"runs": found, "counted": tables, "names": colour_places(names_for_colours(methods))}


def _in_order(methods: Sequence[Method]) -> Iterator[Method]:
    for task in sorted({method.task for method in methods}):
        yield from best_first([method for method in methods if method.task == task])


def curves(run: Run) -> dict[str, Any]:
    """The score of each client over rounds: `rounds`, `unit`, and `curves` in units, each number less the one before.

    Args:
        run: with an array of the score in clients.npz.
    """
    values = run.clients[run.score.column].astype(np.float64) * run.score.factor
    keep = thinned(len(values), max(5, min(_MOST_POINTS, _NUMBERS // max(1, values.shape[1]))))
    values = values[keep]
    known = values[np.isfinite(values)]
    span = float(known.max() - known.min()) if len(known) else 0.0
    unit = 0.1 if run.score.percent else 10.0 ** math.floor(math.log10(span / _STEPS)) if span else 1.0
    return {
        "rounds": [from_one(r) for r in run.clients["rounds"][keep]],
        "unit": unit,
        "curves": [_steps(column / unit) for column in values.T],
    }


def _steps(values: np.ndarray) -> list[int | None]:
    """Whole numbers, each less the last one that is known; None where nothing is."""
    found: list[int | None] = []
    before = 0
    for value in values:
        if math.isfinite(value):
            found.append(round(float(value)) - before)
            before = round(float(value))
        else:
            found.append(None)
    return found


def samples(run: Run) -> dict[str, list[int]]:
    """How many samples each client has to train, to validate and to test on; without those that the run has none of.

    Args:
        run: its split file says so.
    """
    found = {}
    for name, part in (("training", "train"), ("validation", "val"), ("test", "test")):
        offsets = run.split.get(f"{part}_offsets", np.array([]))
        if len(offsets) > 1 and offsets[-1]:
            found[name] = np.diff(offsets).astype(int).tolist()
    return found


def counted(run: Run) -> dict[str, Any] | None:
    """How many training samples of each class, label or interval of the target each client has.

    Args:
        run: its split file says so, or was written before it did.

    Returns:
        `of`, what is counted; `counts`, a row a client; `edges` of the intervals, for targets that are numbers. None
        where nothing was counted, or too much.
    """
    counts, edges = (run.split.get(name, np.empty(0)) for name in ("train_counts", "target_edges"))
    if counts.ndim != 2 or not 0 < counts.size <= _COUNTED:
        return None
    if edges.size:
        return {"of": "target", "counts": counts.tolist(), "edges": [_number(float(edge), 4) for edge in edges]}
    of = "label" if run.score.task == "MultiLabel" else "class"
    return {"of": of, "counts": counts.tolist()}


def about(run: Run) -> list[str]:
    """What is particular about the data of each client, in words; nothing where nothing is.

    Args:
        run: its split file says so.
    """
    clients = number_of_nodes(run)[0]
    words: list[list[str]] = [[] for _ in range(clients)]

    def each(name: str, say: Any) -> None:
        array = run.split.get(name, np.array([]))
        if len(array) == clients:
            for said, value in zip(words, array, strict=True):
                text = say(value)
                said.extend([text] if text else [])

    each("rotation", lambda degrees: f"images turned by {float(degrees):g}°")
    each("writers", lambda name: f"data of {name}" if str(name) else "")
    each("label_map", lambda renamed: _renamed(renamed, "labels"))
    each("test_label_map", lambda renamed: _renamed(renamed, "labels of test samples"))
    each("adversaries", lambda falsified: "training labels falsified" if falsified else "")
    return ["; ".join(said) for said in words]


def _renamed(renamed: np.ndarray, what: str) -> str:
    """Which classes a client calls otherwise."""
    pairs = [f"{old} is {int(new)}" for old, new in enumerate(renamed) if old != int(new)]
    more = f" and {len(pairs) - 4} more" if len(pairs) > 4 else ""
    return f"{what} renamed: {', '.join(pairs[:4])}{more}" if pairs else ""


def links(run: Run) -> dict[str, Any]:
    """Whom each client chose over the recorded rounds; under a server, in how many rounds it was mixed there.

    Args:
        run: with or without recorded links.

    Returns:
        `recorded` rounds and `received`: for each client the senders that it chose most often, in how many rounds and
        with which mean weight in thousandths; how many others it chose; and by how many it was chosen in a round, the
        mean. Or `recorded` and `mixed`. Or nothing.
    """
    clients, nodes = number_of_nodes(run)
    if nodes > clients:
        return _mixed_by_servers(run, clients)
    try:
        found = over_run(run)
    except UserError:
        return {}
    most = max(3, min(_MOST_SENDERS, _SENDERS // clients))
    chosen, received = found.chosen, []
    for i in range(clients):
        order = np.lexsort((np.arange(clients), -found.weight[i], -chosen[i]))
        senders = [int(j) for j in order[: min(most, int((chosen[i] > 0).sum()))]]
        received.append(
            {
                "senders": senders,
                "rounds": [int(chosen[i, j]) for j in senders],
                "weights": [round(1000 * float(found.weight[i, j])) for j in senders],
                "others": int((chosen[i] > 0).sum()) - len(senders),
                "by": _number(float(chosen[:, i].sum()) / found.rounds, 3),
            }
        )
    return {"recorded": found.rounds, "received": received}


def _mixed_by_servers(run: Run, clients: int) -> dict[str, Any]:
    graphs = run.graphs
    used = (graphs["receiver"] >= clients) & (graphs["sender"] < clients) & (graphs["weight"] > 0)
    pairs = np.unique(graphs["round"][used].astype(np.int64) * clients + graphs["sender"][used])
    counts = np.bincount(pairs % clients, minlength=clients)
    return {"recorded": len(np.unique(graphs["round"])), "mixed": counts.tolist()}


def _number(value: float, digits: int = 5) -> float | None:
    return float(f"{value:.{digits}g}") if math.isfinite(value) else None
