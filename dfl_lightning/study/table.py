"""A study's numbers: what was measured in each place of the table, how sure that is, and what is said below it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from dfl_lightning.study import tuning
from dfl_lightning.study.cell_state import CellState, state_of
from dfl_lightning.study.commit import commit_of
from dfl_lightning.study.pairing import Unlike, sentences, unlike
from dfl_lightning.study.plan import Plan
from dfl_lightning.study.statistics import (
    LEAST_COLUMNS,
    LEAST_SEEDS,
    Agreement,
    Difference,
    Overall,
    agreement,
    holm,
    mean_and_sd,
    over_columns,
    paired_difference,
)
from dfl_lightning.study.study_file import ACCURACIES, Published
from dfl_lightning.study.words import as_time, counted

STAR = 0.05
UNDONE = ("running", "not at hand", "failed", "stopped", "waiting")
"""Words for cells without a number, of which a place of the table says the first."""


@dataclass(frozen=True)
class Place:
    """A row and a column.

    Attributes:
        values: accuracy in percent by seed, of the cells that are done.
        published: the paper's number.
        remark: why there is no number.
    """

    values: dict[int, float]
    published: Published | None
    remark: str = ""

    @cached_property
    def mean(self) -> float | None:
        """Over seeds."""
        return mean_and_sd(list(self.values.values()))[0] if self.values else None

    @cached_property
    def sd(self) -> float | None:
        """Over seeds, with n - 1."""
        return mean_and_sd(list(self.values.values()))[1] if self.values else None


@dataclass(frozen=True)
class Rival:
    """A row beside the best of a column.

    Attributes:
        difference: the best minus this row, paired by seed; None where they share no split.
        p: of the sign-flip test, adjusted by Holm for the rows of the column; None below `LEAST_SEEDS`.
    """

    difference: Difference | None
    p: float | None

    @property
    def is_told_apart(self) -> bool:
        """Whether the interval of the difference leaves out 0."""
        return self.difference is not None and self.difference.is_clear

    @property
    def has_star(self) -> bool:
        """Whether the test says so too."""
        return self.p is not None and self.p < STAR


@dataclass(frozen=True)
class Table:
    """What all formats are made from.

    Attributes:
        plan: the cells.
        accuracy: which one is compared.
        places: by row and column.
        best: the row with the highest mean, by column.
        rivals: the other rows of each column, by row and column.
        agreements: with the published order, by column.
        overall: over all columns.
        signs: what the signs in the table mean.
        notes: further sentences for below it.
        states: of all cells.
        made: when, and how long the cells took: what differs between two makings of one table.
    """

    plan: Plan
    accuracy: str
    places: dict[tuple[str, str], Place]
    best: dict[str, str]
    rivals: dict[tuple[str, str], Rival]
    agreements: dict[str, Agreement]
    overall: Overall | None
    signs: list[str]
    notes: list[str]
    states: list[CellState] = field(repr=False)
    made: str = ""

    @property
    def rows(self) -> list[str]:
        """Names of the rows."""
        return list(self.plan.study.rows)

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        return list(self.plan.study.columns)

    @property
    def title(self) -> str:
        """One line."""
        return self.plan.title


def make_table(plan: Plan, accuracy: str | None = None) -> Table:
    """Read all cells and compare.

    Args:
        plan: the cells.
        accuracy: one of `ACCURACIES`; None: the study's.
    """
    accuracy = accuracy or plan.study.accuracy
    states = {key: state_of(cell) for key, cell in plan.cells.items()}
    done = [state for state in states.values() if state.is_done]
    places = {
        (row, column): _place(
            plan, row, column, [states[c.row, c.column, c.seed] for c in plan.of(row, column)], accuracy
        )
        for row in plan.study.rows
        for column in plan.study.columns
    }
    apart = list(unlike(done, list(plan.study.rows)))
    best = _best(plan, places)
    rivals = {key: rival for column in best for key, rival in _rivals(column, best[column], places, apart).items()}
    agreements = _agreements(plan, places)
    overall = _overall(places, plan)
    notes = [
        *_caption(plan, accuracy, done),
        *sentences(apart),
        *_of_agreement(plan, agreements),
        *_of_overall(overall),
        *_diverged(done),
        *_unfinished(list(states.values()), places),
    ]
    signs = list(_signs(plan, done))
    return Table(
        plan, accuracy, places, best, rivals, agreements, overall, signs, notes, list(states.values()), _made(done)
    )


def _place(plan: Plan, row: str, column: str, states: list[CellState], accuracy: str) -> Place:
    published = plan.study.published.get(row, {}).get(column)
    values = {s.cell.seed: 100 * value for s in states if (value := s.accuracy(accuracy)) is not None}
    if plan.study.is_left_out(row, column):
        return Place({}, published, "–")
    if (row, column) in plan.missing:
        return Place({}, published, "not in the library")
    if values:
        return Place(values, published)
    if any(state.is_done for state in states):
        return Place({}, published, f"no {accuracy}")
    words = Counter(state.word for state in states)
    word = next((w for w in UNDONE if words[w]), "waiting")
    return Place({}, published, word)


def _best(plan: Plan, places: Mapping[tuple[str, str], Place]) -> dict[str, str]:
    best = {}
    for column in plan.study.columns:
        means = {row: places[row, column].mean for row in plan.study.rows}
        known = {row: mean for row, mean in means.items() if mean is not None}
        if known:
            best[column] = max(known, key=lambda row: known[row])
    return best


def _rivals(
    column: str, best: str, places: Mapping[tuple[str, str], Place], apart: list[Unlike]
) -> dict[tuple[str, str], Rival]:
    found: dict[tuple[str, str], Difference | None] = {}
    for (row, where), place in places.items():
        if where == column and row != best and place.values:
            broken = any(u.in_split and u.row in (row, best) and column in u.columns for u in apart)
            found[row, column] = None if broken else paired_difference(places[best, column].values, place.values)
    tested = [key for key, difference in found.items() if difference is not None and difference.p is not None]
    adjusted = holm([found[key].p for key in tested])  # type: ignore[union-attr,misc]
    ps = dict(zip(tested, adjusted, strict=True))
    return {key: Rival(difference, ps.get(key)) for key, difference in found.items()}


def _agreements(plan: Plan, places: Mapping[tuple[str, str], Place]) -> dict[str, Agreement]:
    found = {}
    for column in plan.study.columns:
        inside = {row: places[row, column] for row in plan.study.rows}
        published = {row: place.published.mean for row, place in inside.items() if place.published is not None}
        measured = {row: place.mean for row, place in inside.items() if place.mean is not None}
        tau = agreement(published, measured)
        if tau is not None:
            found[column] = tau
    return found


def _overall(places: Mapping[tuple[str, str], Place], plan: Plan) -> Overall | None:
    """Over the columns in which all rows with numbers have one."""
    rows = [row for row in plan.study.rows if any(places[row, c].mean is not None for c in plan.study.columns)]
    columns = [c for c in plan.study.columns if rows and all(places[row, c].mean is not None for row in rows)]
    return over_columns({row: [places[row, c].mean or 0.0 for c in columns] for row in rows})


# --- what is said below a table ---------------------------------------------------------------------------------------
def _caption(plan: Plan, accuracy: str, done: list[CellState]) -> Iterator[str]:
    seeds = ", ".join(map(str, plan.seeds))
    over = f"mean ± standard deviation over seeds {seeds}" if len(plan.seeds) > 1 else f"of seed {seeds} alone"
    yield (
        f"{accuracy}: {ACCURACIES[accuracy]}, in percent; {over} "
        f"(each a split and first models of its own, the same for all rows)"
    )
    if plan.study.note:
        yield plan.study.note
    yield from tuning.caption(plan.study, plan.folder, plan.scale)
    if plan.scale < 1:
        yield f"scaled: all counts of rounds times {plan.scale:g}"
    if done and _most_seeds(plan, done) < LEAST_SEEDS:
        yield f"no tests: below {LEAST_SEEDS} seeds none can reach p < 0.05"
    versions = {f"{name} {v}" for s in done for name, v in s.summary.get("versions", {}).items() if name in _SHOWN}
    commits = sorted({commit for s in done if (commit := commit_of(s.cell))})
    about = [*sorted(versions), *([f"commit {', '.join(commits)}"] if commits else [])]
    if about:
        yield "; ".join(about)


def _signs(plan: Plan, done: list[CellState]) -> Iterator[str]:
    most = _most_seeds(plan, done)
    if any(plan.study.published.values()):
        yield "[published, measured − published]"
    if most > 1:
        yield "bold: the best of a column; ≈: not told apart from it (0 is in the 95 % t-interval of the difference)"
    if most >= LEAST_SEEDS:
        yield "*: exact sign-flip test of the paired differences to the best, p < 0.05 after Holm's correction"


def _most_seeds(plan: Plan, done: list[CellState]) -> int:
    """Seeds of the place that has most; those that it will have, where no cell is done."""
    return max(Counter((s.cell.row, s.cell.column) for s in done).values(), default=len(plan.seeds))


_SHOWN = ("python", "dfl_lightning", "torch", "lightning", "numpy")


def _made(done: list[CellState]) -> str:
    seconds = {s.cell.folder: s.seconds or 0.0 for s in done}  # one cell may have several places
    trained = f"{counted(len(seconds), 'cell')} in {as_time(sum(seconds.values()))} of training"
    return f"{time.strftime('%Y-%m-%d %H:%M')}, {trained}"


def _of_agreement(plan: Plan, agreements: Mapping[str, Agreement]) -> Iterator[str]:
    if agreements:
        parts = [f"{column} {a.tau:.2f} ({a.n} rows)" for column, a in agreements.items()]
        yield f"Kendall's tau of the published and the measured order of the rows: {', '.join(parts)}"


def _of_overall(overall: Overall | None) -> Iterator[str]:
    if overall is None:
        return
    ranks = ", ".join(f"{row} {rank:.2f}" for row, rank in sorted(overall.ranks.items(), key=lambda item: item[1]))
    friedman = "" if overall.p is None else f"; Friedman's test of no difference: p = {overall.p:.2g}"
    yield f"mean ranks over {overall.columns} columns: {ranks}{friedman}"
    pairs = ", ".join(f"{row} {p:.2g}" for row, p in overall.against_best.items())
    yield f"{overall.best} against the others over these columns (Wilcoxon's signed-rank test, Holm): p = {pairs}"
    if overall.columns < LEAST_COLUMNS + 1:
        yield "with 5 columns Wilcoxon's test cannot go below p = 0.062"


def _diverged(done: list[CellState]) -> Iterator[str]:
    """In which cells clients have diverged, whose accuracies are in the means as they are."""
    cells = {s.cell.folder: s for s in done if s.summary.get("diverged")}.values()
    if cells:
        parts = [f"{s.cell.label} ({len(s.summary['diverged'])} of {s.summary['clients']} clients)" for s in cells]
        yield f"training diverged in {', '.join(parts)}; these numbers are in the means"


def _unfinished(states: list[CellState], places: Mapping[tuple[str, str], Place]) -> Iterator[str]:
    words = Counter(state.word for state in {s.cell.folder: s for s in states}.values())
    missing = [f"{words[word]} {word}" for word in UNDONE if words[word]]
    if missing:
        yield f"cells without a number: {', '.join(missing)}"
    reasons: dict[str, list[str]] = {}
    for state in states:
        if state.why and not state.is_done:
            reasons.setdefault(f"{state.word}: {state.why}", []).append(state.cell.label)
    for reason, labels in reasons.items():
        yield f"{labels[0]}{f' and {len(labels) - 1} more' if len(labels) > 1 else ''}: {reason}"
    absent = [row for (row, _), place in places.items() if place.remark == "not in the library"]
    if absent:
        yield f"not in the library yet: {', '.join(dict.fromkeys(absent))}"
