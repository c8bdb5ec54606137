"""Which runs can be compared: finished, of the same number of rounds, and with no client whose training diverged."""

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
    """The methods with those runs only that can be compared, and what is wrong with the others.

    A run is left out if it is not finished, if the training of a client has diverged, or if it was to have another
    number of rounds than most methods have.

    Args:
        methods: of one task.

    Returns:
        The methods that have such runs, and a sentence without its full stop for each that has others.
    """
    whole = {m.full_name: [run for run in m.runs if is_finished(run) and not diverged_clients(run)] for m in methods}
    counts = Counter(max(map(planned_rounds, runs)) for runs in whole.values() if runs)
    rounds = max(counts, key=lambda number: (counts[number], number), default=0)
    found, wrong = [], []
    for method in methods:
        kept = [run for run in whole[method.full_name] if planned_rounds(run) == rounds]
        if kept:
            found.append(replace(method, runs=kept))
        reasons = {seed_of(run): _why_not(run, rounds) for run in method.runs if run not in kept}
        if len(reasons) == len(method.runs) and len(set(reasons.values())) == 1:
            wrong.append(f"{method.name}: {next(iter(reasons.values()))}")
        else:
            wrong += [f"{method.name}, seed {seed}: {reason}" for seed, reason in reasons.items()]
    return found, wrong


def _why_not(run: Run, rounds: int) -> str:
    done, planned, diverged = len(run.metrics["round"]), planned_rounds(run), diverged_clients(run)
    if diverged:
        clients = run.num_clients
        return "all clients diverged" if diverged == clients else f"{diverged} of {clients} clients diverged"
    if not is_finished(run):
        of = f" of {planned}" if planned != done else ""
        return f"{run.summary.get('status', 'not finished')} after {done}{of} round{'s' * (planned != 1)}"
    return f"{planned} round{'s' * (planned != 1)}, not {rounds}"


def best_first(methods: Sequence[Method]) -> list[Method]:
    """The methods of a task from best to worst; those that cannot be compared, or have no score, last.

    Those of `on_common_seeds` come before others, whose means are over other seeds.
    """
    kept = comparable(methods)[0]
    found = on_common_seeds(kept)
    means = {m.full_name: over_runs(last_score, m.runs).mean for m in kept}
    shared = {} if found is None else found.means

    def place(m: Method) -> tuple[int, float]:
        mean = shared.get(m.full_name, means.get(m.full_name, math.nan))
        return (m.full_name not in shared, -m.score.merit(mean)) if math.isfinite(mean) else (2, 0.0)

    return sorted(methods, key=place)


def on_common_seeds(methods: Sequence[Method]) -> Comparable | None:
    """Which methods are compared over which seeds and test data; None where none has a score.

    Of choices of as many runs the one with the method that is best over all its own seeds is taken.

    Args:
        methods: of one task, with the runs that can be compared; with a loss that is not finite they take no part.
    """
    own = {m.full_name: m.score.merit(over_runs(last_score, m.runs).mean) for m in methods}
    known = [m for m in methods if math.isfinite(own[m.full_name])]
    known.sort(key=lambda m: -own[m.full_name])
    values = {m.full_name: {pairing_of(run): last_score(run) for run in m.runs if len(last_scores(run))} for m in known}
    return over_common_seeds(values, bool(known) and not known[0].score.higher_is_better)


def in_order(methods: Sequence[Method]) -> list[Method]:
    """The methods task by task, each from best to worst, as tables and charts of a page list them.

    Args:
        methods: of one or several tasks.
    """
    tasks = sorted({method.task for method in methods})
    return [m for task in tasks for m in best_first([method for method in methods if method.task == task])]


def for_charts(methods: Sequence[Method]) -> list[Method]:
    """The methods as charts draw them, in their order: with the runs that can be compared.

    A method without such a run keeps all of them, and its attribute `aside` says why in a word or two: charts draw it
    faint, and their axes are not made for it. Where no run of a task can be compared, only diverged ones stand aside.

    Args:
        methods: of one or several tasks.
    """
    whole: dict[str, Method] = {}
    tasks = {method.task for method in methods}
    for task in tasks:
        whole |= {m.full_name: m for m in comparable([m for m in methods if m.task == task])[0]}
    judged = {method.task for method in whole.values()}
    return [whole.get(m.full_name) or replace(m, aside=_aside(m.runs[0], m.task in judged)) for m in methods]


MOST_BANDS, FEW_BANDS = 8, 3
"""Methods up to which a chart has a band of each, and the best ones that have one among more."""


def with_bands(methods: Sequence[Method]) -> list[str]:
    """The names of the methods whose bands over seeds a chart shows: of many, whose bands would cover all, the best.

    Args:
        methods: of a task, as charts draw them.
    """
    judged = [m for m in methods if not m.aside] or methods
    several = [m for m in judged if len(m.runs) > 1]
    return [m.name for m in (best_first(several)[:FEW_BANDS] if len(several) > MOST_BANDS else several)]


def _aside(run: Run, others_are_compared: bool) -> str:
    diverged, rounds = diverged_clients(run), len(run.metrics["round"])
    if diverged:
        return "diverged" if diverged == run.num_clients else f"{diverged} diverged"
    if not others_are_compared:
        return ""
    return f"{rounds} round{'s' * (rounds != 1)} only"
