"""Figures of the page, in order: charts with an id, a title, a note and a shape."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from dfl_lightning.bench.report import charts
from dfl_lightning.bench.report.attack import attacks
from dfl_lightning.bench.report.charts.reasons import similarity_bounds, similarity_rounds, stood_in_for
from dfl_lightning.bench.report.comparable import FEW_BANDS, for_charts, with_bands
from dfl_lightning.bench.report.costs import COSTS, SIMULATED, TRAININGS
from dfl_lightning.bench.report.method_names import class_name
from dfl_lightning.bench.report.methods import Method, is_finished, seed_of
from dfl_lightning.bench.report.over_seeds import last_scores
from dfl_lightning.bench.report.page.clients import with_links
from dfl_lightning.bench.report.page.sentences.chance import about_losers, about_test_samples
from dfl_lightning.bench.report.page.sentences.limits import detailed, with_graphs
from dfl_lightning.bench.report.page.sentences.links import about_links
from dfl_lightning.bench.report.page.sentences.spoken import spoken
from dfl_lightning.bench.report.page.sentences.verdict import and_
from dfl_lightning.bench.report.settings.sweeps import grids, sweeps
from dfl_lightning.runs.reading import Run
from dfl_lightning.utils.errors import UserError
from dfl_lightning.utils.score import Score

_ORDER = "Clients are in the order of their clusters where those are known."


@dataclass(frozen=True)
class Group:
    """Words for a group of figures, each of one method: on the page above the group, in a file in each title and note.

    Attributes:
        heading: heading above the group.
        note: note on all figures of the group.
        what: the part of a title after the method's name.
    """

    heading: str
    note: str
    what: str


GROUPS = {
    "bands": Group(
        "Within a run",
        "The line is the median client, the inner band the middle half of the clients, the outer band the middle 80 %; "
        "dashed is the mean of the worst tenth. These bands say how unequal clients are, not how sure the mean is.",
        "clients over rounds",
    ),
    "over": Group(
        "Over the whole run",
        "Share of the recorded rounds in which the receiver, a row, chose the sender; an empty place is a sender that "
        f"was never chosen. All matrices have one scale. {_ORDER}",
        "who learned from whom",
    ),
    "alike": Group(
        "How alike clients are",
        "Similarity in a recorded round, of what the policy named below the method compares. Matrices of one kind of "
        f"score have one scale; an empty place is a pair that was not compared. "
        f"{_ORDER}",
        "how alike clients are",
    ),
}
"""Groups of figures by section."""


@dataclass
class Figure:
    """A chart with its title and note.

    Attributes:
        name: name of its files, and its id in the page.
        title: one line.
        note: a sentence or two; may be empty.
        chart: an Altair chart.
        shape: size on the page: `wide`, `half`, `small` or `square`.
        section: section of the page.
        method: name of its method; empty if it shows several.
        where: name of its task, at the end of the title; empty if there is only one task.
        brief: shorter title and note on the page, below the heading of a group; empty strings: the whole ones.
    """

    name: str
    title: str
    note: str
    chart: Any
    shape: str
    section: str
    method: str = ""
    where: str = ""
    brief: tuple[str, str] = ("", "")

    @cached_property
    def spec(self) -> dict[str, Any]:
        """The specification of Vega-Lite, in the light theme; it is made once and shared, so do not change it."""
        spec: dict[str, Any] = self.chart.to_dict(validate=False)
        return spec

    @cached_property
    def spoken(self) -> str:
        """A description of the chart for readers who cannot see it."""
        return spoken(self.title, self.note, self.spec)


@dataclass
class Collected:
    """A list of figures that grows; charts that cannot be drawn for the runs are left out."""

    figures: list[Figure] = field(default_factory=list)
    where: str = ""

    def add(
        self,
        section: str,
        name: str,
        title: str,
        note: str,
        shape: str,
        make: Callable[[], Any],
        method: str = "",
        brief: tuple[str, str] = ("", ""),
    ) -> None:
        """Draw a chart and append it; leave it out if the runs lack its data, which raises a `UserError`.

        Args:
            section: section of the page.
            name: name of the picture's file.
            title: title above the chart.
            note: a sentence or two under the title; may be empty.
            shape: `wide`, `half`, `small` or `square`.
            make: function that draws the chart.
            method: name of the chart's method; empty if it shows several.
            brief: shorter title and note on the page; empty strings: the whole ones.
        """
        try:
            chart = make()
        except UserError:
            return
        self.figures.append(Figure(name, title, note, chart, shape, section, method, self.where, brief))

    def add_of_group(
        self, section: str, name: str, method: Method, own: str, shape: str, make: Callable[[], Any]
    ) -> None:
        """Draw a chart of one method, and append it to a group.

        Args:
            section: section of the page, a key of `GROUPS`.
            name: name of the picture's file.
            method: method that the chart shows.
            own: note on this chart, in addition to that of the group.
            shape: `small` or `square`.
            make: function that draws the chart.
        """
        group, of = GROUPS[section], method.full_name
        note = f"{group.note} {own[:1].upper()}{own[1:]}."
        self.add(section, name, f"{of}: {group.what}", note, shape, make, method.name, (of, own))


def figures(methods: Sequence[Method]) -> list[Figure]:
    """Draw all charts of the page, except the graph and the matrix, which the page draws itself."""
    collected = Collected()
    tasks = sorted({m.task for m in methods})
    for task in tasks:
        of_task = [m for m in methods if m.task == task]
        tail = f"-{task + 1}" if len(tasks) > 1 else ""
        where = f": {heading(of_task, methods)}" if len(tasks) > 1 else ""
        collected.where = where.removeprefix(": ")
        _add_charts_of_task(collected, of_task, tail, where)
    collected.where = ""
    shown = detailed(methods)
    alike = _alike([method.runs[0] for method in shown])
    readable = with_links(methods, [run for _, run in with_graphs(methods)])
    dropouts = _with_same_dropouts(shown)
    for number, method in enumerate(shown):
        _add_charts_of_method(collected, method, number, alike.get(method.runs[0].path), about_links(method, readable))
        if number in dropouts:
            _add_dropouts(collected, method, number, dropouts[number])
    return collected.figures


def _alike(runs: Sequence[Run]) -> dict[Path, tuple[int, tuple[float, float]]]:
    """Choose for each run with similarities the round of its matrix, and the ends of its colours.

    The round is the last one that all of these runs have recorded, or else the last of the run. Runs whose policies
    compare in the same way have the same ends.
    """
    rounds = {run: known for run in runs if (known := similarity_rounds(run))}
    common = set.intersection(*map(set, rounds.values())) if rounds else set()
    shown = {run: max(common or known) for run, known in rounds.items()}
    found = {}
    for run, round in shown.items():
        same = [other for other in shown if _compared(other) == _compared(run)]
        ends = [ends for other in same if (ends := similarity_bounds([other], shown[other]))]
        if ends:
            found[run.path] = (round, (min(low for low, _ in ends), max(high for _, high in ends)))
    return found


def _with_same_dropouts(methods: Sequence[Method]) -> dict[int, list[Method]]:
    """Group the methods whose first runs have the same dropouts and substitutes, by the first method's place."""
    groups: dict[str, list[int]] = {}
    for number, method in enumerate(methods):
        run = method.runs[0]
        dropped = {name: run.dropouts[name].tolist() for name in sorted(run.dropouts)}
        words = (seed_of(run), run.num_clients, len(run.metrics["round"]), dropped, stood_in_for(run))
        groups.setdefault(repr(words), []).append(number)
    return {group[0]: [methods[number] for number in group] for group in groups.values()}


def heading(of_task: Sequence[Method], methods: Sequence[Method]) -> str:
    """Name a task by its column, its data, or both if the column has several tasks.

    Args:
        of_task: methods of the task.
        methods: methods of all tasks.
    """
    column, task = of_task[0].column, of_task[0].task
    if not column:
        return described(of_task[0])
    alone = all(method.task == task for method in methods if method.column == column)
    return column if alone else f"{column}, {described(of_task[0])}"


def described(method: Method) -> str:
    """Describe the data of a method, from the summary of a run, or from the split file of an unfinished run."""
    finished = [run.summary["data"] for run in method.runs if "data" in run.summary]
    if finished:
        return str(finished[0]).partition(":")[0]
    split = method.runs[0].split
    parts = [str(split[name]) for name in ("dataset", "partition") if name in split]
    return ", ".join(filter(None, parts)) or "data unknown"


def _add_charts_of_task(collected: Collected, methods: list[Method], tail: str, where: str) -> None:
    """Draw the charts that compare the methods of a task.

    Args:
        collected: figures to which the charts are appended.
        methods: methods of the task.
        tail: end of the charts' names.
        where: end of the charts' titles.
    """
    several, score = any(len(m.runs) > 1 for m in methods), methods[0].score
    who = "honest clients" if any(attacks(methods)) else "clients"
    without_them = "Adversaries are left out. " * any(attacks(methods))
    lacking = " Clients whose loss or score is not finite are left out." * _lacks_scores(methods)
    label, field = score.label, score.field
    aside = [f"{m.name} ({m.aside})" for m in for_charts(methods) if m.aside]
    without = f" Without {and_(aside)}." if aside else ""
    band = _on_bands(methods) if several else ""
    over = f", mean over seeds. {band}" if several else "."
    thin = " Thin lines are single seeds." if several else ""
    sizes, losers = about_test_samples(methods), about_losers(methods)
    ended = " A run that ends before others of its method counts with its last number then." * _lengths_differ(methods)
    collected.add(
        "learning",
        f"learning-curves{tail}",
        f"Test {label} over rounds{where}",
        f"Mean over {who}{' and seeds' if several else ''}.{ended} {band}{thin}".strip(),
        "wide",
        lambda: charts.learning_curves(methods),
    )
    collected.add(
        "clients",
        f"clients{tail}",
        f"Clients from best to worst{where}",
        f"{without_them}By rank at the last evaluation{over} Shaded: the worst tenth."
        f"{' ' * bool(sizes)}{sizes}{lacking}",
        "half",
        lambda: charts.sorted_clients(methods),
    )
    collected.add(
        "clients",
        f"gain-over-local{tail}",
        f"What clients gain over training alone{where}",
        "Same client, seed and test data. A dot's area is the number of clients; the upright bar is the mean."
        f"{without}{' ' * bool(losers)}{losers}",
        "half",
        lambda: charts.gain_over_local(methods),
    )
    for cost in COSTS if len(methods) > 1 else ():  # a single point does not make a front
        bars = (
            " Strokes are single seeds, bars 95 % intervals over seeds (Student's t); an arrow at an end says that the "
            "interval goes beyond what the score can be."
            if several
            else ""
        )
        collected.add(
            "cost",
            f"front-by-{cost.name}{tail}",
            f"Test {label} at the end against {cost.words}{where}",
            f"Means of whole runs.{bars} The dotted line joins the methods that none beats in both.",
            "wide",
            partial(charts.accuracy_front, methods, cost.name),
        )
    collected.add(
        "cost",
        f"{field}-by-bytes{tail}",
        f"Test {label} against bytes received{where}",
        "All that a client received until then, mean over clients: models, with those that were only tried (probes), "
        f"and parts of models or messages as large as them (proxies).{ended}",
        "wide",
        lambda: charts.accuracy_by_bytes(methods),
    )
    if any(SIMULATED in run.metrics for m in methods for run in m.runs):
        collected.add(
            "cost",
            f"{field}-by-time{tail}",
            f"Test {label} against simulated time{where}",
            "Seconds of training and transfer on devices of the given speeds.",
            "wide",
            lambda: charts.accuracy_by_time(methods),
        )
    if any(TRAININGS in run.metrics for m in methods for run in m.runs):
        collected.add(
            "cost",
            f"{field}-by-trainings{tail}",
            f"Test {label} against trainings{where}",
            "Trainings of a client until then, mean over clients. In a synchronous round an active client trains once.",
            "wide",
            lambda: charts.accuracy_by_trainings(methods),
        )
    _add_sweeps(collected, methods, tail, where)
    for column, name, title, axis, share in (
        ("neighbour_precision", "precision", "Precision", "precision, %", True),
        ("neighbour_recall", "recall", "Recall", "recall, %", True),
        ("threshold", "threshold", "Participation threshold", "threshold", False),
        ("friend_accuracy", "substitute-accuracy", "Substitutes of the right cluster", "share, %", True),
        ("substitution_error", "substitution-error", "Substitution error", "squared length", False),
        (f"{score.column}_variance", "fairness", "Variance over clients", f"variance of test {label}", False),
        (f"merged_{score.column}", "merged-model", "Mean of all models", score.axis, score.percent),
        ("consensus_distance_relative", "consensus", "Consensus distance", "relative squared distance", False),
    ):
        collected.add(
            "why",
            f"{name}{tail}",
            f"{title}{where}",
            _note_on(column, score),
            "small",
            partial(charts.found_over_rounds, methods, column, axis, share),
        )


_MOST_SWEEPS = 6
"""Largest number of charts of single settings, and of pairs of settings, of a task."""


def _add_sweeps(collected: Collected, methods: Sequence[Method], tail: str, where: str) -> None:
    """Draw the score against each numeric setting that was swept, and a heat map for each two.

    Args:
        collected: figures to which the charts are appended.
        methods: methods of the task.
        tail: end of the charts' names.
        where: end of the charts' titles.
    """
    label, several = methods[0].score.label, any(len(m.runs) > 1 for m in methods)
    bars = " Strokes are single seeds, bars 95 % intervals over seeds (Student's t)." if several else ""
    swept = sweeps(methods)
    for setting in list(swept)[:_MOST_SWEEPS]:
        collected.add(
            "sweeps",
            f"sweep-{_slug(setting)}{tail}",
            f"Test {label} against {setting}{where}",
            f"At the last evaluation. A line joins methods that differ in this setting only.{bars}",
            "half" if len(swept) > 1 else "wide",
            partial(charts.score_by_setting, methods, setting),
        )
    pairs = [(both, grid) for both, found in grids(methods).items() for grid in found]
    for number, (both, grid) in enumerate(pairs[:_MOST_SWEEPS], 1):
        collected.add(
            "sweeps",
            f"sweep-of-two-{number}{tail}",
            f"{grid.name}: test {label} by {both[0]} and {both[1]}{where}",
            "Mean over seeds at the last evaluation; an empty place has no run."
            if several
            else "At the last evaluation.",
            "half",
            partial(charts.score_by_two_settings, methods, both, grid.name),
        )


def _slug(setting: str) -> str:
    """Write the name of a setting as a part of a file's name."""
    return re.sub(r"\W+", "-", setting).strip("-")


def _lacks_scores(methods: Sequence[Method]) -> bool:
    """Return True if a client with test data has a last score that is not finite."""
    return any(not np.isfinite(last_scores(run)).all() for m in for_charts(methods) for run in m.runs)


def _lengths_differ(methods: Sequence[Method]) -> bool:
    """Return True if finished runs of one method have different numbers of rounds, as with early stopping."""
    lengths = ({len(run.metrics["round"]) for run in m.runs if is_finished(run)} for m in for_charts(methods))
    return any(len(of_method) > 1 for of_method in lengths)


def _on_bands(methods: Sequence[Method]) -> str:
    """Say what bands over seeds are, and which methods have one."""
    several = [m for m in for_charts(methods) if len(m.runs) > 1 and not m.aside]
    if len(with_bands(several)) < len(several):
        return f"The bands, of the best {FEW_BANDS} methods, are one standard deviation over seeds."
    return "The band is one standard deviation over seeds; a method with one seed has none."


_WORDS = {
    "neighbour_precision": "Share of the chosen neighbours that are of the receiver's own ground-truth cluster.",
    "neighbour_recall": "Share of the receiver's own ground-truth cluster that it chose.",
    "threshold": "The least score with which a neighbour is chosen, mean over clients.",
    "friend_accuracy": "Share of the dropped clients that a client of their own cluster stood in for.",
    "substitution_error": "Squared length of the average update minus the one without dropouts.",
    "consensus_distance_relative": "Squared distance of the models from their mean, divided by its squared length.",
}


def _note_on(column: str, score: Score) -> str:
    """Say in a sentence what the chart of a column shows."""
    if column.endswith("_variance"):
        of = "accuracies, as shares from 0 to 1" if score.name == "acc" else score.label
        return f"Of their test {of}: the lower, the fairer."
    if column.startswith("merged_"):
        label = score.label[:1].upper() + score.label[1:]
        return f"{label} of the mean of all models on the test data of all clients together."
    return _WORDS[column]


def _add_charts_of_method(
    collected: Collected, method: Method, number: int, alike: tuple[int, tuple[float, float]] | None, links: str
) -> None:
    """Draw the charts of one method: of its first seed.

    Args:
        collected: figures to which the charts are appended.
        method: method of the page.
        number: index of the method, for the charts' names.
        alike: round of the similarities, 0-based, and ends of their colours; None without similarities.
        links: words about the links of all seeds; may be empty.
    """
    run = method.runs[0]
    seed = f"seed {seed_of(run)}"
    own = f"{seed}{f': {links}' if links else ''}"
    collected.add_of_group("bands", f"bands-{number + 1}", method, seed, "small", lambda: charts.client_bands(method))
    collected.add_of_group(
        "over", f"over-the-run-{number + 1}", method, own, "square", lambda: charts.who_from_whom(run)
    )
    if alike is not None:
        round, ends = alike
        collected.add_of_group(
            "alike",
            f"similarities-{number + 1}",
            method,
            f"{seed}, round {round + 1}{_compared(run)}",
            "square",
            lambda: charts.similarities(run, round, ends),
        )


def _add_dropouts(collected: Collected, method: Method, number: int, group: Sequence[Method]) -> None:
    """Draw the dropouts of the first seed of a method.

    Args:
        collected: figures to which the chart is appended.
        method: method of the page.
        number: index of the method, for the chart's name.
        group: all methods with the same dropouts and substitutes.
    """
    run, alone = method.runs[0], len(group) == 1
    stood_in = stood_in_for(run)
    blue = " Blue: active, and standing in for others; the scale says for how many." if stood_in else ""
    who = method.full_name if alone else and_([m.full_name for m in group])
    same = "" if alone else " The same for all of these methods."
    collected.add(
        "dropouts",
        f"dropouts-{number + 1}",
        f"{who}: which clients dropped out{', and which stood in' if stood_in else ''}",
        f"Grey: dropped out.{blue} Seed {seed_of(run)}.{same}",
        "wide",
        lambda: charts.dropouts(run),
        method.name if alone else "",
    )


def _compared(run: Run) -> str:
    """Name the policies of a run that compare clients, for the note on its similarities; empty if they are unknown."""
    groups = [run.config.get(name) for name in ("selection", "substitution", "aggregation")]
    paths = [class_name(str(group.get("class_path", ""))) for group in groups if isinstance(group, dict)]
    options = [
        f"{key} = {value}"
        for group in groups
        if isinstance(group, dict)
        for key, value in (group.get("init_args") or {}).items()
        if key in ("similarity", "metric", "by", "layer", "compare") and value is not None
    ]
    words = ", ".join([*filter(None, paths[:1]), *options])
    return f", {words}" if words else ""
