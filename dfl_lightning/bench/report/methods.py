"""Methods: groups of runs that differ only in their seeds. Methods are compared on the same test data."""

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
        name: name for people, the same in all charts and tables, unique among the methods of a task.
        runs: one run for each seed, in the order of the seeds.
        task: number of the task; methods of a task have the same test data, the same score and the same column.
        column: column of a study; empty without a study.
        among: names of all methods that were grouped together, in order; the position of `name` decides its colour.
        notes: remarks about its runs, such as divergence.
        aside: reason, in a word or two, for which the method cannot be compared; charts draw it faint. Or empty.
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
        """The name with the column, unique among all methods."""
        return f"{self.name}, {self.column}" if self.column else self.name

    @property
    def score(self) -> Score:
        """The score with which models are compared, the same for all its runs."""
        return self.runs[0].score

    @property
    def is_local(self) -> bool:
        """True if clients train alone in all runs."""
        return all(is_local(run) for run in self.runs)

    @property
    def seeds(self) -> list[Any]:
        """The seed of each run."""
        return [seed_of(run) for run in self.runs]


def seed_of(run: Run) -> Any:
    """Return the run's seed; None if it is not yet known."""
    seed = run.summary.get("seeds", {}).get("run")
    return run.config.get("seed_everything") if seed is None else seed


_TESTED_ON: WeakKeyDictionary[Run, str] = WeakKeyDictionary()


def tested_on(run: Run) -> str:
    """Hash the test data of a run's clients, see `tested_data`; empty if unknown.

    Only runs with equal hashes are compared. The hash of a run is computed once.
    """
    if run not in _TESTED_ON:
        _TESTED_ON[run] = tested_data(run.split)
    return _TESTED_ON[run]


def find_methods(
    runs: Sequence[Run], names: Sequence[str] | None = None, columns: Sequence[str] | None = None
) -> list[Method]:
    """Group runs whose settings differ only in the seed into methods.

    Args:
        runs: in any order.
        names: name for each run, or empty; runs with the same name and column are one method.
        columns: column of a study for each run.

    Returns:
        The methods in the order of their first run, with different names. If a method has several runs with one seed,
        the run with most rounds is kept, of equal ones the latest, and the method gets a note.
    """
    given = list(names) if names is not None else [""] * len(runs)
    of_columns = list(columns) if columns is not None else [""] * len(runs)
    groups: dict[tuple[str, str, str], list[Run]] = {}
    for run, name, column in zip(runs, given, of_columns, strict=True):
        groups.setdefault((name, column, "" if name else _settings_key(run)), []).append(run)
    methods = [_method(group, name, column) for (name, column, _), group in groups.items()]
    _number_tasks(methods)
    _make_names_unique(methods)
    sizes = Counter(method.task for method in methods)
    by_comparison = sorted(methods, key=lambda method: -sizes[method.task])  # so that a task has neighbouring colours
    for method in methods:
        method.among = list(dict.fromkeys(other.name for other in by_comparison))
    return methods


def as_methods(runs: Iterable[Run | Method]) -> list[Method]:
    """Return methods as they are, and group runs into methods."""
    entries = list(runs)
    methods = [entry for entry in entries if isinstance(entry, Method)]
    return methods if len(methods) == len(entries) else find_methods([r for r in entries if isinstance(r, Run)])


def names_for_colours(methods: Sequence[Method]) -> list[str]:
    """List the names of all methods that these were grouped with, so that a method has one colour in all charts."""
    return list(dict.fromkeys(name for method in methods for name in method.among or [method.name]))


def settings_of(run: Run) -> dict[str, Any]:
    """Return the settings that decide the numbers of a run, without the seeds.

    For a run that was started from Python, these are what its summary says.
    """
    if not run.config:
        return {**_about(run), UNKNOWN_SETTINGS: f"all, of {run.path.name}"}
    config = {key: value for key, value in deciding(run.config).items() if key != "seed_everything"}
    data = config.get("data")
    if isinstance(data, dict):
        arguments = {k: v for k, v in (data.get("init_args") or {}).items() if k not in ("seed", "split", "root")}
        config["data"] = {**data, "init_args": arguments}
    if config.get(UNKNOWN_SETTINGS):  # two objects may differ although they are described by equal words
        config[UNKNOWN_SETTINGS] = {k: f"{v}, of {run.path.name}" for k, v in config[UNKNOWN_SETTINGS].items()}
    return config


def sources_of_run(run: Run) -> dict[str, str]:
    """Name the version of each of a run's own modules; an unknown version is named after the run, to equal no other."""
    code = run.config.get(CODE) or {}
    return {name: f"of {run.path.name}" if text == UNKNOWN else f"source {text[:8]}" for name, text in code.items()}


def _with_sources(run: Run) -> dict[str, Any]:
    """Add the versions of a run's own code to its settings, since a changed class is another method."""
    sources = sources_of_run(run)
    return {**settings_of(run), **({"sources": sources} if sources else {})}


def is_finished(run: Run) -> bool:
    """Return True if the run has finished, neither stopped nor failed."""
    return bool(run.summary.get("status") == "finished")


def planned_rounds(run: Run) -> int:
    """Return the number of rounds that the run was planned to have.

    If its config does not say so, as for a run that was started from Python, this is the number of rounds so far.
    """
    trainer = run.config.get("trainer")
    options = trainer if isinstance(trainer, dict) else {}
    planned = options.get("max_rounds") or options.get("max_epochs")
    return planned if isinstance(planned, int) and planned > 0 else len(run.metrics["round"])


def diverged_clients(run: Run) -> int:
    """Count the clients whose training diverged in any round."""
    return len(np.unique(run.diverged.get("client", np.array([]))))


def _settings_key(run: Run) -> str:
    """Return a text that is equal for runs with the same settings; a run with unknown settings equals no other."""
    is_complete = run.config and not run.config.get(UNKNOWN_SETTINGS)
    return config_text(_with_sources(run)) if is_complete else str(run.path)


def _about(run: Run) -> dict[str, Any]:
    return {key: run.summary.get(key) for key in ("policies", "network", "clients", "topology", "data")}


def _method(runs: list[Run], name: str, column: str) -> Method:
    """Make a method of runs: choose one run for each seed, and write the notes."""
    by_seed: dict[Any, Run] = {}
    notes = []
    seeds_by_remark: dict[str, list[Any]] = {}
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
        remarks = []
        if status != "finished":
            of = f" of {planned_rounds(run)}" if planned_rounds(run) != rounds else ""
            remarks.append(f"{status} after {rounds}{of} round{'s' * (planned_rounds(run) != 1)}")
        diverged = diverged_clients(run)
        if diverged:
            remarks.append(f"the training of {diverged} client{'s' * (diverged > 1)} diverged")
        if run.config.get(CHANGED):
            remarks.append("settings were changed when the run was resumed")
        if run.config.get(FORKED):
            remarks.append(f"forked from {run.config[FORKED].get('checkpoint')}")
        for remark in remarks:
            seeds_by_remark.setdefault(remark, []).append(seed)
    for remark, seeds in seeds_by_remark.items():
        which = f"seeds {', '.join(map(str, seeds))}" if len(seeds) > 1 else f"seed {seeds[0]}"
        notes.append(f"{which}: {remark}")
    return Method(name or base_name(kept[0]), kept, column=column, notes=list(dict.fromkeys(notes)))


def _make_names_unique(methods: list[Method]) -> None:
    """Append to equal names the settings that differ; append a number to names that are still equal."""
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
    """Set the task of each method.

    Two methods are in one task if they have a run each with the same column, test data and score, or are connected by
    such pairs of methods.
    """
    keys = [
        {(method.column, tested_on(run) or str(run.path), run.score.name) for run in method.runs} for method in methods
    ]
    number = 0
    for index, method in enumerate(methods):
        tasks = [
            other.task
            for other, keys_of_other in zip(methods[:index], keys, strict=False)
            if keys_of_other & keys[index]
        ]
        method.task = min(tasks, default=number)
        for other in methods[:index]:
            if other.task in tasks:
                other.task = method.task
        number = max(number, method.task + 1)
