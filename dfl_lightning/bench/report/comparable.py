"""Choice of the runs that can be compared: finished, with equal numbers of rounds, and without diverged clients."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from dfl_lightning.bench.report.methods import Method, diverged_clients, is_finished, planned_rounds, seed_of
from dfl_lightning.bench.report.over_seeds import last_score, last_scores, over_runs, pairing_of
from dfl_lightning.bench.stats.common_seeds import Comparable, over_common_seeds
from dfl_lightning.runs.reading import Run


def comparable(methods: Sequence[Method]) -> tuple[list[Method], list[str]]:
    """Reduce a task's methods to the runs that can be compared, and say why the others cannot.

    A run is left out if it is not finished, if the training of a client diverged, or if its planned number of rounds
    is not that of most methods.

    Returns:
        The methods that have comparable runs, with these runs only. And for each method with other runs one or more
        sentences without a full stop: the reasons.
    """
    whole = {m.full_name: [run for run in m.runs if is_finished(run) and not diverged_clients(run)] for m in methods}
    counts = Counter(max(map(planned_rounds, runs)) for runs in whole.values() if runs)
    rounds = max(counts, key=lambda number: (counts[number], number), default=0)
    reduced, sentences = [], []
    for method in methods:
        kept = [run for run in whole[method.full_name] if planned_rounds(run) == rounds]
        if kept:
            reduced.append(replace(method, runs=kept))
        reasons = {seed_of(run): _why_not(run, rounds) for run in method.runs if run not in kept}
        if len(reasons) == len(method.runs) and len(set(reasons.values())) == 1:
            sentences.append(f"{method.name}: {next(iter(reasons.values()))}")
        else:
            sentences += [f"{method.name}, seed {seed}: {reason}" for seed, reason in reasons.items()]
    return reduced, sentences


def _why_not(run: Run, rounds: int) -> str:
    """Give the reason for which a run is not compared.

    Args:
        run: one that is left out.
        rounds: planned rounds of the runs that are compared.
    """
    done, planned, diverged = len(run.metrics["round"]), planned_rounds(run), diverged_clients(run)
    if diverged:
        clients = run.num_clients
        return "all clients diverged" if diverged == clients else f"{diverged} of {clients} clients diverged"
    if not is_finished(run):
        of = f" of {planned}" if planned != done else ""
        return f"{run.summary.get('status', 'not finished')} after {done}{of} round{'s' * (planned != 1)}"
    return f"{planned} round{'s' * (planned != 1)}, not {rounds}"


def best_first(methods: Sequence[Method]) -> list[Method]:
    """Sort a task's methods from best to worst; those that cannot be compared, or have no score, come last.

    Methods that `on_common_seeds` compares come before others, whose means are over other seeds.
    """
    kept = comparable(methods)[0]
    over_seeds = on_common_seeds(kept)
    means = {m.full_name: over_runs(last_score, m.runs).mean for m in kept}
    shared = {} if over_seeds is None else over_seeds.means

    def sort_key(m: Method) -> tuple[int, float]:
        mean = shared.get(m.full_name, means.get(m.full_name, math.nan))
        return (m.full_name not in shared, -m.score.merit(mean)) if math.isfinite(mean) else (2, 0.0)

    return sorted(methods, key=sort_key)


def on_common_seeds(methods: Sequence[Method]) -> Comparable | None:
    """Choose the methods of a task that are compared, and their common seeds and test data; None if none has a score.

    Of several choices with the same number of runs, the one with the method that is best over all its seeds is taken.

    Args:
        methods: with only those runs that can be compared; methods with a loss that is not finite are left out.
    """
    merits = {m.full_name: m.score.merit(over_runs(last_score, m.runs).mean) for m in methods}
    scored = [m for m in methods if math.isfinite(merits[m.full_name])]
    scored.sort(key=lambda m: -merits[m.full_name])
    values = {
        m.full_name: {pairing_of(run): last_score(run) for run in m.runs if len(last_scores(run))} for m in scored
    }
    return over_common_seeds(values, bool(scored) and not scored[0].score.higher_is_better)


def in_order(methods: Sequence[Method]) -> list[Method]:
    """Sort methods by task, and within each task from best to worst: the order of a page's tables and charts."""
    tasks = sorted({method.task for method in methods})
    return [m for task in tasks for m in best_first([method for method in methods if method.task == task])]


def for_charts(methods: Sequence[Method]) -> list[Method]:
    """Prepare methods for charts: keep the order, and of each method only the runs that can be compared.

    A method without such a run keeps all runs. Its attribute `aside` then gives the reason in a word or two: charts
    draw it faint, and their axes are not made for it. If no run of a task can be compared, only methods that diverged
    get a reason.

    Args:
        methods: methods of one or several tasks.
    """
    whole: dict[str, Method] = {}
    tasks = {method.task for method in methods}
    for task in tasks:
        whole |= {m.full_name: m for m in comparable([m for m in methods if m.task == task])[0]}
    judged = {method.task for method in whole.values()}
    return [whole.get(m.full_name) or replace(m, aside=_aside(m.runs[0], m.task in judged)) for m in methods]


MOST_BANDS, FEW_BANDS = 8, 3
"""With up to `MOST_BANDS` methods, a chart shows a band for each method; with more, for the best `FEW_BANDS`."""


def with_bands(methods: Sequence[Method]) -> list[str]:
    """Name the methods whose bands over seeds a chart shows: all with several seeds, or of many the best ones.

    Many bands would cover all lines.

    Args:
        methods: methods of a task, as `for_charts` returns them.
    """
    judged = [m for m in methods if not m.aside] or methods
    several = [m for m in judged if len(m.runs) > 1]
    return [m.name for m in (best_first(several)[:FEW_BANDS] if len(several) > MOST_BANDS else several)]


def _aside(run: Run, others_are_compared: bool) -> str:
    """Give the reason in a word or two for which a method is not compared; may be empty."""
    diverged, rounds = diverged_clients(run), len(run.metrics["round"])
    if diverged:
        return "diverged" if diverged == run.num_clients else f"{diverged} diverged"
    if not others_are_compared:
        return ""
    return f"{rounds} round{'s' * (rounds != 1)} only"
