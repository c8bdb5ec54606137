"""Sentences about the effect of chance on the scores of single clients, which have few test samples."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dfl_lightning.bench.report.charts.clients import gains
from dfl_lightning.bench.report.comparable import for_charts
from dfl_lightning.bench.report.methods import Method
from dfl_lightning.bench.report.over_seeds import last_score
from dfl_lightning.bench.report.page.sentences.verdict import and_
from dfl_lightning.utils.words import counted


def test_samples(methods: Sequence[Method]) -> list[int]:
    """List the numbers of test samples of all clients with test data, over all runs of a task's methods.

    Runs whose split file does not contain them are left out.
    """
    numbers: list[int] = []
    for run in (run for method in methods for run in method.runs):
        sizes = np.diff(run.split.get("test_offsets", np.array([], dtype=np.int64)))
        numbers += [int(size) for size in sizes if size > 0]
    return numbers


def about_test_samples(methods: Sequence[Method]) -> str:
    """Say how many test samples a client has, and how much equal clients therefore differ by chance.

    The sentence is empty if the numbers of test samples are unknown.

    Args:
        methods: methods of a task.
    """
    sizes = test_samples(methods)
    if not sizes:
        return ""
    least, most = min(sizes), max(sizes)
    said = counted(least, "test sample") if least == most else f"{least:,} to {most:,} test samples"
    score, middle = methods[0].score, float(np.median(sizes))
    scores = [value for m in methods for run in m.runs if 0 < (value := last_score(run)) < 1]
    if score.name != "acc" or not scores:
        return f"A client has {said}."
    sd = deviation_by_chance(float(np.mean(scores)), middle)
    return f"A client has {said}: by chance alone, equal clients differ by {100 * sd:.1f} points (standard deviation)."


def deviation_by_chance(accuracy: float, samples: float) -> float:
    """Compute the binomial standard deviation of an accuracy that is measured on independent samples.

    Args:
        accuracy: expected accuracy, from 0 to 1.
        samples: number of samples.

    Examples:
        >>> deviation_by_chance(0.5, 25)
        0.1
    """
    return math.sqrt(accuracy * (1 - accuracy) / samples)


def losers_by_chance(gains: Sequence[float]) -> float:
    """Compute how many clients would lose if both methods were equal: half of those whose scores differ.

    With equal methods, a gain and a loss are equally likely for each client.

    Args:
        gains: score of each client minus its score with the other method.

    Examples:
        >>> losers_by_chance([2.0, -1.0, 0.0, 3.0])
        1.5
    """
    return sum(gain != 0 for gain in gains) / 2


def about_losers(methods: Sequence[Method]) -> str:
    """Say how many clients of each method would lose by chance alone, compared with training alone.

    The sentence is empty if no method of the task trains alone.
    """
    drawn = for_charts(methods)
    alone = next((m for m in drawn if m.is_local), None)
    if alone is None:
        return ""
    rows = gains([m for m in drawn if not m.aside], alone)
    of_methods = {row["method"]: [r["gain"] for r in rows if r["method"] == row["method"]] for row in rows}
    if not of_methods:
        return ""
    parts = [f"{losers_by_chance(values):g} of {len(values)} for {name}" for name, values in of_methods.items()]
    half = "Of a method that equals training alone, half of the clients whose scores differ lose"
    return f"{half}: on average {and_(parts)}."
