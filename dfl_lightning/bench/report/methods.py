"""Runs put together: those that differ in their seeds only are a method; methods are compared on the same test data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from dfl_lightning.bench.report.method_names import base_name, is_local
from dfl_lightning.bench.report.settings.words import in_names
from dfl_lightning.bench.stats.tested import tested_data
from dfl_lightning.checkpoints.history import CHANGED, FORKED, UNKNOWN_SETTINGS, config_text, deciding
from dfl_lightning.checkpoints.own_code import CODE
from dfl_lightning.runs.reading import Run
from dfl_lightning.utils.code.source_code import UNKNOWN
from dfl_lightning.utils.score import Score


@dataclass
class Method:
    """Runs of the same settings with different seeds.

    Attributes:
        name: for people, the same in all charts and tables; no two methods of a task have the same.
        runs: by seed.
        task: methods with the same number are tested on the same data, by the same score, and of the same column.
        column: of a study, empty without one.
        among: the names of all methods that it was found with, in their order: it has its colour by its place there.
        notes: what a reader must know about its runs.
        aside: of a method that charts draw faint, because it cannot be compared: why, in a word or two.
    """

    name: str
    runs: list[Run]
    task: int = 0
    column: str = ""
    among: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    aside: str = ""

    @property
    def full_name(self) -> str:
        """With the column; no two methods have the same."""
        return f"{self.name}, {self.column}" if self.column else self.name

    @property
    def score(self) -> Score:
        """By what its runs' task compares models."""
        return self.runs[0].score

    @property
    def is_local(self) -> bool:
        """Whether clients train alone."""
        return all(is_local(run) for run in self.runs)

    @property
    def seeds(self) -> list[Any]:
        """Of the runs."""
        return [seed_of(run) for run in self.runs]


def seed_of(run: Run) -> Any:
    """The run's seed; None where it is not known yet."""
    found = run.summary.get("seeds", {}).get("run")
    return run.config.get("seed_everything") if found is None else found


_TESTED_ON: WeakKeyDictionary[Run, str] = WeakKeyDictionary()


def tested_on(run: Run) -> str:
    """A word for the data that the clients are tested on, and what is done to them; empty where it is not known.

    Runs are compared only where this word is the same. It is computed once for a run.
    """
    if run not in _TESTED_ON:
        _TESTED_ON[run] = tested_data(run.split)
    return _TESTED_ON[run]


def find_methods(
    runs: Sequence[Run], names: Sequence[str] | None = None, columns: Sequence[str] | None = None
) -> list[Method]:
    """Group runs.

    Args:
        runs: in any order.
        names: a name for each run, empty where none was given; runs of one name and column are one method.
        columns: of a study, for each run.

    Returns:
        The methods in the order of their first run, with names that differ. Of runs of a method with one seed the one
        with most rounds is taken, of equal ones the latest, and the method has a note.
    """
    given = list(names) if names is not None else [""] * len(runs)
    places = list(columns) if columns is not None else [""] * len(runs)
    groups: dict[tuple[str, str, str], list[Run]] = {}
    for run, name, column in zip(runs, given, places, strict=True):
        groups.setdefault((name, column, "" if name else _settings_key(run)), []).append(run)
    methods = [_method(group, name, column) for (name, column, _), group in groups.items()]
    _number_tasks(methods)
    _tell_apart(methods)
    sizes = Counter(method.task for method in methods)
    by_comparison = sorted(methods, key=lambda method: -sizes[method.task])  # those of one have neighbouring colours
    for method in methods:
        method.among = list(dict.fromkeys(other.name for other in by_comparison))
    return methods


def as_methods(runs: Iterable[Run | Method]) -> list[Method]:
    """What a chart is asked for: runs, which are grouped, or methods."""
    found = list(runs)
    methods = [entry for entry in found if isinstance(entry, Method)]
    return methods if len(methods) == len(found) else find_methods([r for r in found if isinstance(r, Run)])


def names_for_colours(methods: Sequence[Method]) -> list[str]:
    """The names of all methods that these were found with, so that a method has one colour in all charts."""
    return list(dict.fromkeys(name for method in methods for name in method.among or [method.name]))


def settings_of(run: Run) -> dict[str, Any]:
    """The settings that decide the numbers of a run, without the seeds; of one from Python what its summary says."""
    if not run.config:
        return {**_about(run), UNKNOWN_SETTINGS: f"all, of {run.path.name}"}
    config = {key: value for key, value in deciding(run.config).items() if key != "seed_everything"}
    data = config.get("data")
    if isinstance(data, dict):
        arguments = {k: v for k, v in (data.get("init_args") or {}).items() if k not in ("seed", "split", "root")}
        config["data"] = {**data, "init_args": arguments}
    if config.get(UNKNOWN_SETTINGS):  # equal words do not make equal objects
        config[UNKNOWN_SETTINGS] = {k: f"{v}, of {run.path.name}" for k, v in config[UNKNOWN_SETTINGS].items()}
    return config


def sources_of_run(run: Run) -> dict[str, str]:
    """Name the version of each of a run's own modules in words; one that is not known is of this run alone."""
    code = run.config.get(CODE) or {}
    return {name: f"of {run.path.name}" if text == UNKNOWN else f"source {text[:8]}" for name, text in code.items()}


def _with_sources(run: Run) -> dict[str, Any]:
    """Add to the settings of a run the versions of its own code: a changed class makes another method."""
    sources = sources_of_run(run)
    return {**settings_of(run), **({"sources": sources} if sources else {})}


def is_finished(run: Run) -> bool:
    """Whether the run has ended as it was to end."""
    return bool(run.summary.get("status") == "finished")


def planned_rounds(run: Run) -> int:
    """The rounds that the run was to have; of one from Python, and of one without end, those that it has."""
    trainer = run.config.get("trainer")
    options = trainer if isinstance(trainer, dict) else {}
    planned = options.get("max_rounds") or options.get("max_epochs")
    return planned if isinstance(planned, int) and planned > 0 else len(run.metrics["round"])


def diverged_clients(run: Run) -> int:
    """The number of clients whose training has diverged in some round."""
    return len(np.unique(run.diverged.get("client", np.array([]))))


def _settings_key(run: Run) -> str:
    known = run.config and not run.config.get(UNKNOWN_SETTINGS)
    return config_text(_with_sources(run)) if known else str(run.path)


def _about(run: Run) -> dict[str, Any]:
    return {key: run.summary.get(key) for key in ("policies", "network", "clients", "topology", "data")}


def _method(runs: list[Run], name: str, column: str) -> Method:
    """One of a seed each, and what there is to say of them."""
    by_seed: dict[Any, Run] = {}
    notes = []
    about: dict[str, list[Any]] = {}  # what there is to say, of which seeds
    for run in sorted(runs, key=lambda run: (len(run.metrics["round"]), is_finished(run), run.path.name)):
        seed = seed_of(run)
        if seed in by_seed:
            alike = len(by_seed[seed].metrics["round"]) == len(run.metrics["round"])
            which = "the latest run counts" if alike else "the run with most rounds counts"
            notes.append(f"seed {seed} was run more than once; {which}")
        by_seed[seed] = run
    kept = [by_seed[seed] for seed in sorted(by_seed, key=lambda seed: (seed is None, seed))]
    for run in kept:
        status, seed = run.summary.get("status", "not finished"), seed_of(run)
        rounds = len(run.metrics["round"])
        said = []
        if status != "finished":
            of = f" of {planned_rounds(run)}" if planned_rounds(run) != rounds else ""
            said.append(f"{status} after {rounds}{of} round{'s' * (planned_rounds(run) != 1)}")
        who = diverged_clients(run)
        if who:
            said.append(f"the training of {who} client{'s' * (who > 1)} diverged")
        if run.config.get(CHANGED):
            said.append("settings were changed when the run was resumed")
        if run.config.get(FORKED):
            said.append(f"forked from {run.config[FORKED].get('checkpoint')}")
        for words in said:
            about.setdefault(words, []).append(seed)
    for words, seeds in about.items():
        which = f"seeds {', '.join(map(str, seeds))}" if len(seeds) > 1 else f"seed {seeds[0]}"
        notes.append(f"{which}: {words}")
    return Method(name or base_name(kept[0]), kept, column=column, notes=list(dict.fromkeys(notes)))


def _tell_apart(methods: list[Method]) -> None:
    """Methods of one name get the settings that differ, or else their folder, or a number, as a part of it."""
    for full_name in dict.fromkeys(method.full_name for method in methods):
        same = [method for method in methods if method.full_name == full_name]
        if len(same) < 2:
            continue
        for method, words in zip(same, in_names([config_text(_with_sources(m.runs[0])) for m in same]), strict=True):
            if words:
                method.name = f"{method.name} ({words})"
    seen: dict[str, int] = {}
    for method in methods:
        seen[method.full_name] = number = seen.get(method.full_name, 0) + 1
        if number > 1:
            method.name = f"{method.name} ({number})"


def _number_tasks(methods: list[Method]) -> None:
    """Methods of a column of which two runs are tested on the same data, by the same score, are of one task."""
    words = [
        {(method.column, tested_on(run) or str(run.path), run.score.name) for run in method.runs} for method in methods
    ]
    number = 0
    for at, method in enumerate(methods):
        before = [other.task for other, word in zip(methods[:at], words, strict=False) if word & words[at]]
        method.task = min(before, default=number)
        for other in methods[:at]:
            if other.task in before:
                other.task = method.task
        number = max(number, method.task + 1)
