"""The verdict on methods, as rows of a table and as sentences, which claim only differences that the seeds show."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dfl_lightning.bench.report.comparable import best_first, comparable, on_common_seeds
from dfl_lightning.bench.report.methods import Method
from dfl_lightning.bench.report.over_seeds import (
    known_numbers,
    last_score,
    models_a_round,
    over_runs,
    paired,
    received,
    seconds,
    worst_tenth,
)
from dfl_lightning.bench.stats.multiple import judged_among, least_seeds, p_of, simultaneous
from dfl_lightning.bench.stats.statistics import SIGNIFICANT, Interval, Spread, adjusted, paired_interval, spread
from dfl_lightning.utils.score import Score
from dfl_lightning.utils.words import counted, enumerated

SAME, LEAST_SEEDS = 1.0, 3
"""Two methods are called the same if the interval of their difference lies within plus or minus `SAME`, with at least
`LEAST_SEEDS` common seeds. The unit of `SAME` is points if the score is a share, else per cent of the best mean."""

_NAMED = 3
"""Number of methods that a sentence names; in a longer list the others are counted."""


@dataclass(frozen=True)
class Line:
    """A method's row of the table: its score, its cost, and its differences to other methods.

    Attributes:
        method: with only those runs that are compared; if there are none, with all runs.
        score: last score, mean over clients.
        worst: last score of the worst tenth of the clients.
        models: models received by a client in a round.
        received: bytes received by a client in the whole run.
        seconds: seconds of all rounds.
        to_best: difference to the best method, with the interval of this pair alone; None if they cannot be paired.
        over_local: difference to training alone, with the interval of this pair; None if they cannot be paired.
        is_best: True for the best method.
        takes_part: True if the method is compared with the others.
        p: p of the difference to the best method, adjusted for all methods; 1 if it is not judged.
        among: number of methods that are judged together; 0 if the difference is not judged.
    """

    method: Method
    score: Spread
    worst: Spread
    models: Spread
    received: Spread
    seconds: Spread
    to_best: Interval | None
    over_local: Interval | None
    is_best: bool
    takes_part: bool = True
    p: float = 1.0
    among: int = 0

    @property
    def is_apart(self) -> bool:
        """True if the method differs significantly from the best one, adjusted for all methods of the task."""
        return self.p < SIGNIFICANT


def lines(methods: Sequence[Method]) -> list[Line]:
    """Return the table's rows of a task from best to worst; methods without comparable runs or scores come last."""
    compared = {m.full_name: m for m in comparable(methods)[0]}
    order = [compared.get(m.full_name, m) for m in best_first(methods)]
    means = {m.full_name: over_runs(last_score, m.runs) for m in order}
    ranked = [m for m in order if m.full_name in compared and math.isfinite(means[m.full_name].mean)]
    best, judged = ranked[0] if ranked else None, {m.full_name for m in ranked}
    local = next((m for m in compared.values() if m.is_local), None)

    def difference(m: Method, other: Method | None) -> Interval | None:
        return (
            None if other is None or m is other or not {m.full_name, other.full_name} <= judged else _paired(m, other)
        )

    gaps = {m.full_name: gap for m in ranked if (gap := difference(m, best)) is not None}
    judged_with = judged_among(gaps)
    ps = dict(zip(judged_with, adjusted([p_of(gaps[name]) for name in judged_with]), strict=True))
    return [
        Line(
            method=m,
            score=means[m.full_name],
            worst=over_runs(worst_tenth, m.runs),
            models=spread([models_a_round(run) for run in m.runs]),
            received=spread([received(run) for run in m.runs]),
            seconds=spread([seconds(run) for run in m.runs]),
            to_best=difference(m, best),
            over_local=difference(m, local),
            is_best=m is best,
            takes_part=m.full_name in compared,
            p=ps.get(m.full_name, 1.0),
            among=len(ps) + 1 if m.full_name in ps else 0,
        )
        for m in order
    ]


def _is_below(line: Line) -> bool:
    """Return True if a method is worse than the best one over their common seeds."""
    return line.to_best is not None and line.method.score.merit(line.to_best.mean) < 0


def not_compared(methods: Sequence[Method]) -> str:
    """Say which methods or runs of a task are not compared, and why; empty if all are compared.

    A long list names three and counts the others.
    """
    wrong = comparable(methods)[1]
    return f"Not compared: {_listed(wrong)}." if wrong else ""


def _listed(wrong: Sequence[str]) -> str:
    return "; ".join([*wrong[:_NAMED], f"{len(wrong) - _NAMED} more"] if len(wrong) > _NAMED + 1 else wrong)


def sentences(methods: Sequence[Method], brief: bool = False) -> list[str]:
    """Write the verdict on the methods of a task, after a sentence about what is not compared.

    Differences to the best method are judged together, see `bench.stats.multiple`, and only with enough common seeds.
    A long list of methods in a sentence names three and counts the others.

    Args:
        methods: methods of a task.
        brief: leave out intervals, put all methods that are clearly worse into one sentence, and count those without a
            verdict.
    """
    kept, wrong = comparable(methods)
    rows, aside = lines(methods), not_compared(methods)
    evaluated = [line for line in rows if line.score.count]
    judged = [line for line in evaluated if line.takes_part and math.isfinite(line.score.mean)]
    broken = [line.method.name for line in evaluated if line.takes_part and math.isnan(line.score.mean)]
    score = methods[0].score
    if len(rows) == 1 and not kept and evaluated:
        return [f"{_listed(wrong)}.", _last_evaluation(rows[0].score, score)]
    words = [aside] if aside else []
    if broken:
        words.append(f"In {and_(broken)} a client's {_of_tests(score)} is not finite: there is no mean.")
    if not judged:
        why = "No run can be compared" if evaluated else "No run was evaluated on test data"
        of_server = f"global_{score.column}"
        if not evaluated and any(known_numbers(run, of_server) for method in methods for run in method.runs):
            why = "No client has test data, so there is no verdict"
            return [*words, f"{why}; the numbers of the server's model are in the column {of_server}."]
        return [*words, *[f"{why}, so there is no verdict."] * (not broken)]
    first = judged[0]
    apart: list[Line] = []
    ahead: list[str] = []
    same: list[str] = []
    undecided, few, unpaired = [], [], []
    for line in judged[1:]:
        gap, name = line.to_best, "training alone" if line.method.is_local else line.method.name
        if gap is None:
            unpaired.append(name)
        elif not line.among:
            few.append(line)
        elif line.is_apart and _is_below(line):
            if not line.method.is_local:
                apart.append(line)
        elif line.is_apart:  # better than the best one over their common seeds, which are fewer
            ahead.append(f"{name} is {score.distance(gap.mean)} {_better(score)} ({gap.count} common seeds)")
        else:
            wide = simultaneous(gap, line.among)
            part = cheaper(line, first)
            of_bytes = "" if part is None else f"{part:.2g} of the bytes"
            around = [] if brief else [f"{gap.count} common seeds", interval(wide, score)]
            more = ", ".join(filter(None, [*around, of_bytes]))
            undecided.append(f"{name} ({more})" if more else name)
            if part is not None and is_same(wide, first):
                same.append(f"{name} with {of_bytes}")
    alone = next((line for line in judged[1:] if line.method.is_local and line.is_apart and _is_below(line)), None)
    basis = _basis(kept)
    unclear = [f"The seeds show no clear difference to {and_(undecided)}."] * bool(undecided)
    if brief:
        words += [_ends(first, score, _above_local(alone)), *basis, *unclear, *_worse_methods_in_brief(apart)]
    else:
        words += [_ends(first, score), *basis, *_against_local(alone), *_worse_methods(apart), *unclear]
    if ahead:
        words.append(f"Over the seeds in common with the best, {_listed(ahead)}.")
    if same:
        words.append(f"The same {score.label}, within {_margin(first)}, is reached by {and_(same)}.")
    words += _too_few(few, brief)
    if unpaired:
        words.append(f"It has no seed in common with {and_(unpaired)}.")
    return words


def _too_few(few: Sequence[Line], brief: bool) -> list[str]:
    """Say which differences are not judged for lack of common seeds, and how many seeds are needed.

    Args:
        few: rows of these methods.
        brief: count the methods if there are more than two, and leave out why so many seeds are needed.
    """
    if not few:
        return []
    names = ["training alone" if line.method.is_local else line.method.name for line in few]
    most = max(line.to_best.count for line in few if line.to_best is not None)
    have = "one common seed" if most == 1 else f"{most} common seeds"
    needed = least_seeds(len(few) + 1)
    if brief:
        which = f"{len(few)} other methods" if len(few) > 2 else and_(names)
        return [f"With {have} there is no verdict on the difference to {which}: it takes {needed} or more."]
    why = ", since all pairs are corrected together" if len(few) > 1 else ""
    return [
        f"With {have} there is no verdict on the difference to {and_(names)}: for {len(few) + 1} methods it takes "
        f"{needed} seeds or more{why}."
    ]


def is_same(gap: Interval, best: Line) -> bool:
    """Return True if two methods may be called the same: the interval of their difference contains 0 and is narrow.

    Both of its ends must lie within `SAME`, and `LEAST_SEEDS` common seeds are needed.

    Args:
        gap: difference of their scores, paired by seed and test data, with its interval.
        best: row of the method that the other one is compared with.
    """
    if gap.count < LEAST_SEEDS or gap.low is None or gap.high is None or gap.is_clear:
        return False
    return max(-gap.low, gap.high) <= _tolerance(best)


def _tolerance(best: Line) -> float:
    """Return `SAME` in the unit of the score."""
    return SAME / 100 * (1.0 if best.method.score.percent else abs(best.score.mean))


def _margin(best: Line) -> str:
    return "1 point" if best.method.score.percent else "1 %"


def cheaper(line: Line, best: Line) -> float | None:
    """Return the share of the best method's bytes that another method receives; None if it is not clearly cheaper.

    The share is the ratio of the means over common seeds. A method is clearly cheaper if there are at least
    `LEAST_SEEDS` of them, and if the 95 % interval of the mean logarithm of the ratio is below 0.

    Args:
        line: row of the method.
        best: row of the best method.
    """
    pairs = [(received(x), received(y)) for x, y in paired(line.method, best.method)]
    if len(pairs) < LEAST_SEEDS or not all(math.isfinite(x) and math.isfinite(y) and x and y for x, y in pairs):
        return None
    ratio = paired_interval([(math.log(x), math.log(y)) for x, y in pairs])
    if ratio is None or ratio.high is None or ratio.high >= 0:
        return None
    return math.fsum(x for x, _ in pairs) / math.fsum(y for _, y in pairs)


def _ends(line: Line, score: Score, more: str = "") -> str:
    return f"{line.method.name} ends at {_shown(line.score, score)}{more}."


def _above_local(alone: Line | None) -> str:
    """Say by how much the best method is above training alone; empty if the difference is not significant.

    Args:
        alone: row of training alone, if it is significantly worse than the best method.
    """
    if alone is None or alone.to_best is None:
        return ""
    gain, score = -alone.to_best.mean, alone.method.score
    return f", {score.distance(gain)} {'above' if gain > 0 else 'below'} training alone"


def _against_local(alone: Line | None) -> list[str]:
    if alone is None or alone.to_best is None:
        return []
    gap = alone.to_best
    low, high = (None if end is None else -end for end in (gap.high, gap.low))
    gain = Interval(-gap.mean, low, high, gap.count)
    return [f"That is{_above_local(alone).removeprefix(',')} ({certainty(gain, alone)})."]


def certainty(gap: Interval, line: Line, bare: bool = False) -> str:
    """Say how certain a difference is: its simultaneous interval, or its adjusted p if that interval contains 0.

    Both may happen, since the p of the closed procedure is the more powerful test; see `bench.stats.multiple`.

    Args:
        gap: significant difference, with the interval of this pair alone.
        line: row of the method that differs from the best one.
        bare: leave out the words before the interval.
    """
    wide, score = simultaneous(gap, line.among), line.method.score
    if wide.is_clear:
        return interval(wide, score, bare)
    return f"adjusted p {'below 0.001' if line.p < 0.001 else f'= {line.p:.2g}'}"


def _worse_methods(rows: Sequence[Line]) -> list[str]:
    """Say which methods are worse than the best, and by how much, with the interval of each."""
    if not rows:
        return []
    score = rows[0].method.score
    where = _worse(score)
    named: list[str] = []
    for line, gap in _with_gaps(rows[: _NAMED if len(rows) > _NAMED + 1 else None]):
        around = certainty(gap, line, bare=bool(named))  # the words before the interval are needed only once
        named.append(f"{line.method.name} is {score.distance(gap.mean)} {where} ({around})")
    if len(rows) > len(named):
        others = rows[len(named) :]
        named.append(f"{len(others)} others are {_span(others)} {where}")
    return [f"{'; '.join(named)}."]


def _worse_methods_in_brief(rows: Sequence[Line]) -> list[str]:
    """Say in one sentence which methods are worse than the best, without intervals."""
    if not rows:
        return []
    are = "is" if len(rows) == 1 else "are"
    return [f"{and_([line.method.name for line in rows])} {are} {_span(rows)} {_worse(rows[0].method.score)}."]


def _basis(methods: Sequence[Method]) -> list[str]:
    """Say over which seeds the best method is chosen, if methods have different seeds."""
    choice = on_common_seeds(methods)
    if choice is None or choice.same_seeds:
        return []
    order = best_first(methods)
    names = [m.name for m in order if m.full_name in choice.means]
    lacking = [m.name for m in order if m.full_name in choice.others]
    if len(lacking) == 1 and all(len(m.runs) == len(choice.seeds) for m in order if m.full_name in choice.means):
        return [f"{lacking[0]} lacks seeds of the others, among which the best is chosen."]
    over = f"the {counted(len(choice.seeds), 'seed')} of {and_(names)}"
    return [f"Methods have different seeds: the best is chosen over {over}."]


def _last_evaluation(value: Spread, score: Score) -> str:
    """Say the last score of a method that cannot be compared."""
    if math.isnan(value.mean):
        return f"At the last evaluation a client's {_of_tests(score)} is not finite."
    return f"The last evaluation gives {_shown(value, score)}."


def _of_tests(score: Score) -> str:
    """Name the two values of a client that must be finite for a mean score."""
    return f"loss or {score.label} on test data"


def _better(score: Score) -> str:
    return "higher" if score.higher_is_better else "lower"


def _worse(score: Score) -> str:
    return "lower" if score.higher_is_better else "higher"


def _with_gaps(rows: Sequence[Line]) -> list[tuple[Line, Interval]]:
    return [(line, line.to_best) for line in rows if line.to_best is not None]


def _span(rows: Sequence[Line]) -> str:
    """Write the smallest and the largest distance to the best method; only one of them if both are equal."""
    score, gaps = rows[0].method.score, sorted(abs(gap.mean) for _, gap in _with_gaps(rows))
    least, most = score.distance(gaps[0]), score.distance(gaps[-1])
    return most if least == most else f"{score.number(gaps[0])} to {most}"


def _paired(a: Method, b: Method) -> Interval | None:
    return paired_interval([(last_score(x), last_score(y)) for x, y in paired(a, b)])


def _shown(value: Spread, score: Score) -> str:
    around = "" if value.sd is None else f" ± {score.number(value.sd, value.mean)}"
    seeds = f"{value.count} seeds" if value.count > 1 else "one seed"
    mean = f"{score.number(value.mean)}{around}"
    return f"{mean} % test {score.label} ({seeds})" if score.percent else f"test {score.label} {mean} ({seeds})"


def interval(value: Interval, score: Score, bare: bool = False, reference: float | None = None) -> str:
    """Write a 95 % interval, in points if the score is a share; empty with one pair.

    Args:
        value: interval of a difference of scores; a simultaneous one unless `bare`, since the words say so.
        score: score of the task.
        bare: leave out the words before the interval.
        reference: number whose digits after the point are used; None: the difference.

    Examples:
        >>> difference = Interval(0.02, 0.01, 0.03, 3)
        >>> interval(difference, Score()), interval(difference, Score(), bare=True)
        ('simultaneous 95 % interval +1.0 to +3.0', '+1.0 to +3.0')
    """
    if value.low is None or value.high is None:
        return ""
    digits = value.mean if reference is None else reference
    ends = f"{score.signed(value.low, digits)} to {score.signed(value.high, digits)}"
    return ends if bare else f"simultaneous 95 % interval {ends}"


def and_(names: Sequence[str]) -> str:
    """Join names for a sentence; a long list names three and counts the others.

    Examples:
        >>> and_(["A", "B", "C"]), and_(["A", "B", "C", "D", "E"])
        ('A, B and C', 'A, B, C and 2 others')
    """
    if len(names) > _NAMED + 1:
        names = [*names[:_NAMED], f"{len(names) - _NAMED} others"]
    return enumerated(names)
