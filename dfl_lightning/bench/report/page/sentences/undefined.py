"""The sentences of a page about chosen metrics, and about numbers that are undefined for some clients."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from dfl_lightning.bench.report.methods import Method
from dfl_lightning.utils.score import Score


def about_metrics(methods: Sequence[Method]) -> list[str]:
    """Write a sentence for each entry `metrics` of the runs' summaries: its means, and the clients left out of them.

    Args:
        methods: methods of a task.
    """
    columns = dict.fromkeys(
        column for method in methods for run in method.runs for column in run.summary.get("metrics", {})
    )
    return [_about(column, methods) for column in columns]


def _about(column: str, methods: Sequence[Method]) -> str:
    split, _, name = column.partition("_")
    score = Score("", name, True, methods[0].score.is_share(column))
    means, counts = [], []
    for method in methods:
        entries = [run.summary["metrics"][column] for run in method.runs if column in run.summary.get("metrics", {})]
        known = [entry["mean"] for entry in entries if entry["mean"] is not None]
        if entries:
            means.append(f"{method.name} {score.text(math.fsum(known) / len(known)) if known else 'unknown'}")
            counts.append((method.name, _counted(entries)))
    sentence = f"{split.capitalize()} {score.label}, mean over clients: {', '.join(means)}"
    return "; ".join([sentence, *_left_out(counts)]) + "."


def _counted(entries: Sequence[dict[str, int]]) -> str:
    """Say for how many clients a number is undefined: the range over seeds; empty if there is none.

    Examples:
        >>> _counted([{"undefined": 1, "clients": 5}, {"undefined": 2, "clients": 5}])
        '1 to 2 of 5 clients'
        >>> _counted([{"undefined": 1, "clients": 5}]), _counted([{"undefined": 0, "clients": 5}])
        ('1 of 5 clients', '')
    """
    numbers = sorted({entry["undefined"] for entry in entries})
    clients = sorted({entry["clients"] for entry in entries})
    if not numbers[-1]:
        return ""
    low, high = (" to ".join(map(str, dict.fromkeys((each[0], each[-1])))) for each in (numbers, clients))
    return f"{low} of {high} clients"


def _left_out(counts: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Yield words about the clients that are left out, once if they are as many in all methods."""
    words = {said for _, said in counts}
    if words == {""}:
        return
    if len(words) == 1:
        yield f"{words.pop()} undefined, and left out"
        return
    yield f"undefined, and left out: {', '.join(f'{name} {said}' for name, said in counts if said)}"
