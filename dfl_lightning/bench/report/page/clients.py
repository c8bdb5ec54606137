"""Data of the page's view of a single client: its score over rounds, its samples, and the senders that it chose.

Runs with the same seed and test data have the same clients, so that the page can show a client in each of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dfl_lightning.bench.report.charts.colours import colour_places
from dfl_lightning.bench.report.charts.over_run import over_run
from dfl_lightning.bench.report.comparable import best_first
from dfl_lightning.bench.report.methods import Method, names_for_colours, seed_of
from dfl_lightning.bench.report.network import number_of_nodes
from dfl_lightning.bench.report.over_seeds import from_one, last_of_clients, pairing_of, thinned
from dfl_lightning.bench.report.page.contents.choices import choices
from dfl_lightning.bench.report.page.sentences.limits import MOST_CLIENTS
from dfl_lightning.runs.reading import Run
from dfl_lightning.utils.errors import UserError

_MOST_POINTS, _NUMBERS = 50, 20_000
"""Largest number of points of a client's curve, and of all curves of a run."""

_NUMBERS_OF_OTHERS, _FEW_RUNS = 250_000, 36
"""Largest number of points of all curves of the runs without graphs, and the number of these runs up to which the page
has the links of their clients."""

_MOST_SENDERS, _SENDERS = 12, 2_400
"""Largest number of senders that are listed for a client, and for all clients of a run; at least three for each."""

_COUNTED = 100_000
"""Largest number of entries in a table of samples by client and class, or by client and interval of the target."""

_STEPS = 1000
"""Least number of units into which the range of a score is divided, if it is not shown in per cent."""


def client_entries(methods: Sequence[Method], shown: Sequence[Run]) -> list[dict[str, Any]]:
    """Return the data about the clients of each run, in the order of the page's tables, the best method first.

    Args:
        methods: methods of the page.
        shown: runs whose graphs are on the page. The curves of other runs have fewer points if there are many.

    Returns:
        A dict for each run with `path` (which the caller removes), `method`, `name`, `seed`, `task`, `data` (a number
        that is equal for runs with the same clients), `local`, `last`, the last score of each client, `rounds`, `unit`
        and `curves`, `samples`, `counted` and `about`. Runs in `shown`, and others if they are few, also have the
        result of `links` and, as `choices`, that of the function of this name.
    """
    numbers: dict[tuple[Any, ...], int] = {}
    others = [run for method in methods for run in method.runs if run not in shown]
    linked = with_links(methods, shown)
    clients_of_others = sum(len(last_of_clients(run)) for run in others)
    most = _NUMBERS_OF_OTHERS // max(1, clients_of_others)
    entries = []
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
                "data": numbers.setdefault((method.task, *clients), len(numbers)),
                "local": method.is_local,
                "last": [_number(value * run.score.factor) for value in last],
            }
            entry |= curves(run, _MOST_POINTS if run in shown else most)
            entry |= {"samples": samples(run), "counted": counted(run), "about": about(run)}
            if run.path in linked:
                entry |= {**links(run), "choices": choices(run)}
            entries.append(entry)
    return entries


def with_links(methods: Sequence[Method], shown: Sequence[Run]) -> set[Path]:
    """Return the folders of the runs whose recorded links are read: those whose graphs are shown, and others if few.

    Args:
        methods: methods of the page.
        shown: runs whose graphs are on the page.
    """
    paths = {run.path for method in methods for run in method.runs}
    own = {run.path for run in shown}
    return paths if len(paths - own) <= _FEW_RUNS else own


def clients_on_page(methods: Sequence[Method], linked: Sequence[tuple[Run, dict[str, Any]]]) -> dict[str, Any]:
    """Return the data about the clients of all runs, and write into each run's entry where its clients are.

    Args:
        methods: methods of the page.
        linked: runs that can be chosen on the page, with their entries, which are `light` without graphs. If the
            clients of a run are known, its entry gets a number `clients`.
    """
    runs = client_entries(methods, [run for run, entry in linked if "light" not in entry])
    numbers = {entry.pop("path"): number for number, entry in enumerate(runs)}
    tables: list[dict[str, Any]] = []
    for entry in runs:
        table = entry.pop("counted", None)
        if table is not None:  # runs with one seed share a table, which is stored once
            if table not in tables:
                tables.append(table)
            entry["counted"] = tables.index(table)
    for run, entry in linked:
        if run.path in numbers:
            entry["clients"] = numbers[run.path]
    return {"runs": runs, "counted": tables, "names": colour_places(names_for_colours(methods))}


def _in_order(methods: Sequence[Method]) -> Iterator[Method]:
    for task in sorted({method.task for method in methods}):
        yield from best_first([method for method in methods if method.task == task])


def curves(run: Run, most: int = _MOST_POINTS) -> dict[str, Any]:
    """Return the score of each client over rounds: `rounds`, `unit`, and for each client the differences in `curves`.

    Values of curves are whole numbers of units, see `_steps`.

    Args:
        run: run with an array of the score in clients.npz.
        most: largest number of points of a curve; at least five are kept.
    """
    values = run.clients[run.score.column].astype(np.float64) * run.score.factor
    keep = thinned(len(values), max(5, min(_MOST_POINTS, most, _NUMBERS // max(1, values.shape[1]))))
    values = values[keep]
    finite = values[np.isfinite(values)]
    span = float(finite.max() - finite.min()) if len(finite) else 0.0
    unit = 0.1 if run.score.percent else 10.0 ** math.floor(math.log10(span / _STEPS)) if span else 1.0
    return {
        "rounds": [from_one(r) for r in run.clients["rounds"][keep]],
        "unit": unit,
        "curves": [_steps(column / unit) for column in values.T],
    }


def _steps(values: np.ndarray) -> list[int | None]:
    """Round values and return the difference of each to the last finite one; None if a value is not finite."""
    steps: list[int | None] = []
    before = 0
    for value in values:
        if math.isfinite(value):
            steps.append(round(float(value)) - before)
            before = round(float(value))
        else:
            steps.append(None)
    return steps


def samples(run: Run) -> dict[str, list[int]]:
    """Return each client's numbers of training, validation and test samples, from the run's split file.

    A kind of samples that no client has is left out.
    """
    numbers = {}
    for name, part in (("training", "train"), ("validation", "val"), ("test", "test")):
        offsets = run.split.get(f"{part}_offsets", np.array([]))
        if len(offsets) > 1 and offsets[-1]:
            numbers[name] = np.diff(offsets).astype(int).tolist()
    return numbers


def counted(run: Run) -> dict[str, Any] | None:
    """Return each client's numbers of training samples by class, label or interval of the target.

    Returns:
        `of`, what is counted; `counts`, a row for each client; and `edges` of the intervals, if targets are numbers.
        None if the split file has no such counts, or too many.
    """
    counts, edges = (run.split.get(name, np.empty(0)) for name in ("train_counts", "target_edges"))
    if counts.ndim != 2 or not 0 < counts.size <= _COUNTED:
        return None
    if edges.size:
        return {"of": "target", "counts": counts.tolist(), "edges": [_number(float(edge), 4) for edge in edges]}
    of = "label" if run.score.task == "MultiLabel" else "class"
    return {"of": of, "counts": counts.tolist()}


def about(run: Run) -> list[str]:
    """Describe for each client what is special about its data, such as a rotation; empty if nothing is.

    The run's split file contains these properties.
    """
    clients = number_of_nodes(run)[0]
    remarks: list[list[str]] = [[] for _ in range(clients)]

    def describe_each(name: str, describe: Any) -> None:
        array = run.split.get(name, np.array([]))
        if len(array) == clients:
            for of_client, value in zip(remarks, array, strict=True):
                text = describe(value)
                of_client.extend([text] if text else [])

    describe_each("rotation", lambda degrees: f"images turned by {float(degrees):g}°")
    describe_each("writers", lambda name: f"data of {name}" if str(name) else "")
    describe_each("label_map", lambda renamed: _renamed(renamed, "labels"))
    describe_each("test_label_map", lambda renamed: _renamed(renamed, "labels of test samples"))
    describe_each("adversaries", lambda falsified: "training labels falsified" if falsified else "")
    return ["; ".join(of_client) for of_client in remarks]


def _renamed(renamed: np.ndarray, what: str) -> str:
    """List the classes that have another label at a client; empty without any."""
    pairs = [f"{old} is {int(new)}" for old, new in enumerate(renamed) if old != int(new)]
    more = f" and {len(pairs) - 4} more" if len(pairs) > 4 else ""
    return f"{what} renamed: {', '.join(pairs[:4])}{more}" if pairs else ""


def links(run: Run) -> dict[str, Any]:
    """Summarise the links of each client over the recorded rounds.

    Returns:
        `recorded`, the number of recorded rounds, and `received`, a dict for each client: `senders`, those that it
        chose most often; `rounds`, in how many rounds; `weights`, their mean weights in thousandths; `others`, the
        number of other senders; and `by`, the mean number of clients that chose it in a round. With a server,
        `recorded` and `mixed`: in how many rounds a server mixed each client. Empty without recorded links.
    """
    clients, nodes = number_of_nodes(run)
    if nodes > clients:
        return _mixed_by_servers(run, clients)
    try:
        pairs = over_run(run)
    except UserError:
        return {}
    most = max(3, min(_MOST_SENDERS, _SENDERS // clients))
    chosen, received = pairs.chosen, []
    for i in range(clients):
        order = np.lexsort((np.arange(clients), -pairs.weight[i], -chosen[i]))
        senders = [int(j) for j in order[: min(most, int((chosen[i] > 0).sum()))]]
        received.append(
            {
                "senders": senders,
                "rounds": [int(chosen[i, j]) for j in senders],
                "weights": [round(1000 * float(pairs.weight[i, j])) for j in senders],
                "others": int((chosen[i] > 0).sum()) - len(senders),
                "by": _number(float(chosen[:, i].sum()) / pairs.rounds, 3),
            }
        )
    return {"recorded": pairs.rounds, "received": received}


def _mixed_by_servers(run: Run, clients: int) -> dict[str, Any]:
    graphs = run.graphs
    used = (graphs["receiver"] >= clients) & (graphs["sender"] < clients) & (graphs["weight"] > 0)
    pairs = np.unique(graphs["round"][used].astype(np.int64) * clients + graphs["sender"][used])
    counts = np.bincount(pairs % clients, minlength=clients)
    return {"recorded": len(np.unique(graphs["round"])), "mixed": counts.tolist()}


def _number(value: float, digits: int = 5) -> float | None:
    return float(f"{value:.{digits}g}") if math.isfinite(value) else None
