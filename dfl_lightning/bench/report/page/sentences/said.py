"""The verdict on the methods of a task with its qualifications: unequal conditions, and scores at chance level."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dfl_lightning.bench.report.chance_level import chance_level, near_chance
from dfl_lightning.bench.report.comparable import comparable
from dfl_lightning.bench.report.methods import Method, seed_of
from dfl_lightning.bench.report.over_seeds import last_score, over_runs
from dfl_lightning.bench.report.page.sentences.equal_costs import at_equal_costs
from dfl_lightning.bench.report.page.sentences.verdict import and_, sentences
from dfl_lightning.bench.report.settings.conditions import in_words, unequal_conditions
from dfl_lightning.runs.reading import Run
from dfl_lightning.utils.words import as_percent, enumerated

BRIEF = 160
"""Largest number of letters for conditions with their values in a brief verdict; if more, it only names conditions."""


def qualified(methods: Sequence[Method], brief: bool = False) -> list[str]:
    """Return the sentences of the verdict, followed by those that qualify it.

    Args:
        methods: methods of a task.
        brief: see `sentences`.
    """
    said = [*sentences(methods, brief), *about_conditions(methods, brief), *about_chance(methods)]
    return [*said, *at_equal_costs(methods, brief)]


def about_conditions(methods: Sequence[Method], brief: bool = False) -> list[str]:
    """Say in which conditions the runs of compared methods differ, such as rounds or batch size; empty without any.

    One run of each method is compared: of a seed that all methods have, or else the first one.

    Args:
        methods: methods of a task.
        brief: leave out the values of conditions if they are long.
    """
    compared = comparable(methods)[0]
    runs, is_paired = _comparable_runs(compared)
    facts = [{"training samples": _training_samples(run)} for run in runs] if is_paired else []
    conditions = unequal_conditions([run.config for run in runs], facts, without=("data.split",))
    unequal = [(name, ["none" if value == "–" else value for value in values]) for name, values in conditions]
    if not unequal:
        return []
    words = in_words([method.name for method in compared], unequal)
    if brief and len(words) > BRIEF:
        words = enumerated([name for name, _ in unequal])
    return [f"Conditions differ, too, not only methods: {words}."]


def about_chance(methods: Sequence[Method]) -> list[str]:
    """Say which methods of a task end at chance level, and which are not shown to be above it."""
    at_chance, unclear = near_chance(methods)
    words = []
    if at_chance:
        ends = sorted(over_runs(last_score, method.runs).mean for method in at_chance)
        end, level = "ends" if len(at_chance) == 1 else "end", as_percent(chance_level(at_chance) or 0.0)
        least, most = at_chance[0].score.number(ends[0]), as_percent(ends[-1])
        scores = most if as_percent(ends[0]) == most else f"{least} to {most}"
        words.append(f"{and_([m.name for m in at_chance])} {end} at {scores}, not above chance level ({level}).")
    if unclear:
        are, level = "is" if len(unclear) == 1 else "are", as_percent(chance_level(unclear) or 0.0)
        names = and_([m.name for m in unclear])
        words.append(f"The seeds do not show that {names} {are} above chance level ({level}).")
    return words


def _comparable_runs(methods: Sequence[Method]) -> tuple[list[Run], bool]:
    """Return one run of each method, and True if all these runs have the same seed."""
    by_seed = [{seed_of(run): run for run in method.runs} for method in methods]
    common = [seed for seed in (by_seed[0] if by_seed else {}) if all(seed in runs for runs in by_seed)]
    if not common:
        return [method.runs[0] for method in methods], False
    return [runs[common[0]] for runs in by_seed], True


def _training_samples(run: Run) -> int | None:
    offsets = run.split.get("train_offsets", np.empty(0))
    return int(offsets[-1]) if len(offsets) else None
