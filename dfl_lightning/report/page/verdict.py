"""What the numbers say, in words and in a table; nothing is said that the seeds do not show."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dfl_lightning.report.methods import Method
from dfl_lightning.report.over_seeds import (
    PairedDifference,
    Spread,
    accuracy,
    difference,
    over_runs,
    paired,
    received,
    seconds,
    spread,
    worst_tenth,
)


@dataclass(frozen=True)
class Line:
    """A method in the table; shares, bytes and seconds, differences in shares."""

    method: Method
    accuracy: Spread
    worst: Spread
    received: Spread
    seconds: Spread
    to_best: PairedDifference | None
    over_local: PairedDifference | None
    is_best: bool


def best_first(methods: Sequence[Method]) -> list[Method]:
    """The methods of a task from best to worst; those without an accuracy last."""
    means = {m.name: over_runs(accuracy, m.runs).mean for m in methods}
    return sorted(methods, key=lambda m: -means[m.name] if math.isfinite(means[m.name]) else math.inf)


def lines(methods: Sequence[Method]) -> list[Line]:
    """The methods of a task from best to worst; those without an accuracy last."""
    means = {m.name: over_runs(accuracy, m.runs) for m in methods}
    order = best_first(methods)
    best = order[0] if order and math.isfinite(means[order[0].name].mean) else None
    local = next((m for m in methods if m.is_local), None)
    return [
        Line(
            method=m,
            accuracy=means[m.name],
            worst=over_runs(worst_tenth, m.runs),
            received=spread([received(run) for run in m.runs]),
            seconds=spread([seconds(run) for run in m.runs]),
            to_best=None if best is None or m is best else _paired(m, best),
            over_local=None if local is None or m is local else _paired(m, local),
            is_best=m is best,
        )
        for m in order
    ]


def sentences(found: Sequence[Line]) -> list[str]:
    """The verdict on the methods of a task.

    With one seed of a method no difference to it is judged, and no spread is given.
    """
    known = [line for line in found if line.accuracy.count]
    if not known:
        return ["No run was evaluated on test data, so there is no verdict."]
    first = known[0]
    words = [f"{first.method.name} ends at {_share(first.accuracy)}.", *_against_local(first)]
    lower, undecided, single, unpaired = [], [], [], []
    for line in known[1:]:
        gap, name = line.to_best, line.method.name
        if line.method.is_local and first.over_local is not None:
            continue
        if gap is None:
            unpaired.append(name)
        elif gap.count < 2:
            single.append(name)
        elif gap.is_clear:
            lower.append(f"{name} is {_points(-gap.mean)} lower ({interval(gap)})")
        else:
            undecided.append(f"{name} ({gap.count} common seeds, {interval(gap)})")
    if lower:
        words.append(f"{'; '.join(lower)}.")
    if undecided:
        words.append(f"The seeds show no clear difference to {_and(undecided)}.")
    if single:
        words.append(f"With one common seed there is no verdict on the difference to {_and(single)}.")
    if unpaired:
        words.append(f"It has no seed in common with {_and(unpaired)}.")
    return words


def _against_local(line: Line) -> list[str]:
    gain = line.over_local
    if gain is None:
        return []
    if gain.count < 2:
        return ["With one common seed there is no verdict on the difference to training alone."]
    if not gain.is_clear:
        return [f"The seeds show no clear difference to training alone ({interval(gain)})."]
    where = "above" if gain.mean > 0 else "below"
    return [f"That is {_points(abs(gain.mean))} {where} training alone ({interval(gain)})."]


def _paired(a: Method, b: Method) -> PairedDifference | None:
    return difference([(accuracy(x), accuracy(y)) for x, y in paired(a, b)])


def _share(value: Spread) -> str:
    around = f" ± {100 * value.sd:.1f}" if math.isfinite(value.sd) else ""
    seeds = f"{value.count} seeds" if value.count > 1 else "one seed"
    return f"{100 * value.mean:.1f}{around} % test accuracy ({seeds})"


def _points(share: float) -> str:
    return f"{100 * share:.1f} points"


def interval(value: PairedDifference) -> str:
    """The 95 % interval in points; empty with one pair.

    Examples:
        >>> interval(PairedDifference(0.02, 0.01, 0.03, 3))
        '95 % interval +1.0 to +3.0'
    """
    if value.count < 2:
        return ""
    return f"95 % interval {100 * value.low:+.1f} to {100 * value.high:+.1f}".replace("-", "−")


def _and(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 2 else names)
