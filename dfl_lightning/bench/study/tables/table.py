"""The table of a study: the measured numbers, their uncertainty, and the notes below."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from dfl_lightning.bench.stats.common_seeds import Comparable, over_common_seeds
from dfl_lightning.bench.stats.multiple import judged_among, least_seeds, p_of
from dfl_lightning.bench.stats.statistics import (
    SIGNIFICANT,
    Agreement,
    Difference,
    Overall,
    adjusted,
    agreement,
    least_p,
    least_replications,
    over_columns,
    paired_difference,
    pairs_among,
    spread,
)
from dfl_lightning.bench.study import tuning
from dfl_lightning.bench.study.cells.cell_state import CellState, state_of
from dfl_lightning.bench.study.cells.commit import commit_of
from dfl_lightning.bench.study.cells.of_code import about_code
from dfl_lightning.bench.study.file.exclude import sentences as about_excluded
from dfl_lightning.bench.study.file.study_file import Published
from dfl_lightning.bench.study.plan import Plan
from dfl_lightning.bench.study.tables.comparable import sentences as about_seeds
from dfl_lightning.bench.study.tables.measures.equal_cost import compared_at
from dfl_lightning.bench.study.tables.measures.measure import Measure
from dfl_lightning.bench.study.tables.measures.reach import RoundsToReach, partly_reached, require_one_score
from dfl_lightning.bench.study.tables.measures.validated import are_validated
from dfl_lightning.bench.study.tables.pairing import Unlike, sentences, unlike
from dfl_lightning.bench.study.tables.received import ABOUT, HEADING, RoundTraffic, in_words, received_by
from dfl_lightning.bench.study.tables.unequal import sentences as about_conditions
from dfl_lightning.runs.processor import where_made
from dfl_lightning.utils.score import Score
from dfl_lightning.utils.words import as_time, counted, enumerated

BROKEN = "not finite"
"""The text instead of a number that is NaN or infinite, for example because a client's loss is not finite."""

UNDONE = ("running", "missing data", "failed", "other code", "stopped", "waiting")
"""States of cells without a number; a place of the table shows the first one that applies."""


@dataclass(frozen=True)
class TableCell:
    """The numbers of a row and column.

    Attributes:
        values: numbers of the finished cells by seed, in the unit of the table.
        published: the paper's number.
        remark: the text instead of missing numbers.
        asked: number of finished seeds, if they may miss the value of `--reach`; otherwise 0.
        bytes: what a client received until the value was reached, by seed.
    """

    values: dict[int, float]
    published: Published | None
    remark: str = ""
    asked: int = 0
    bytes: dict[int, float] = field(default_factory=dict)

    @property
    def is_partly_reached(self) -> bool:
        """True if some seeds reach the value and others do not."""
        return 0 < len(self.values) < self.asked

    def seeds_in_words(self, planned: int) -> str:
        """Describe how many seeds a number is of; empty if it is of all planned ones.

        Args:
            planned: number of seeds of the table.

        Examples:
            >>> TableCell({0: 3.0}, None, asked=2).seeds_in_words(3), TableCell({0: 3.0}, None).seeds_in_words(3)
            ('(1 of 2 seeds)', '(n = 1)')
        """
        if self.is_partly_reached:
            return f"({len(self.values)} of {self.asked} seeds)"
        number = self.asked or len(self.values)
        return f"(n = {number})" if 0 < number < planned else ""

    @cached_property
    def mean(self) -> float | None:
        """The mean over seeds; None without seeds."""
        return spread(list(self.values.values())).mean if self.values else None

    @cached_property
    def sd(self) -> float | None:
        """The standard deviation over seeds, with n - 1."""
        return spread(list(self.values.values())).sd


@dataclass(frozen=True)
class Rival:
    """A row that is compared with the best one of its column.

    Attributes:
        difference: the best row minus this one, paired by seed; None if they share no split or no seed.
        p: p value of the sign-flip test, adjusted for all rows of the column; None with fewer than six seeds.
        p_of_t: p value of the paired t-test, adjusted in the same way; 1 if the row is not judged.
        among: number of rows that are judged together, the best one included; 0 if there are too few seeds.
    """

    difference: Difference | None
    p: float | None
    p_of_t: float = 1.0
    among: int = 0

    @property
    def has_interval(self) -> bool:
        """True if two or more seeds are paired."""
        return self.difference is not None and self.difference.low is not None

    @property
    def is_undecided(self) -> bool:
        """True if the adjusted t-test does not tell this row from the best one."""
        return self.has_interval and self.p_of_t >= SIGNIFICANT

    @property
    def has_star(self) -> bool:
        """True if the adjusted sign-flip test tells this row from the best one."""
        return self.p is not None and self.p < SIGNIFICANT

    @property
    def sign(self) -> str:
        """The sign behind the row's number in a table, which `Table.signs` explains."""
        return "*" if self.has_star else "≈" if self.is_undecided else ""


@dataclass(frozen=True)
class Table:
    """The content of a table, from which all formats are made.

    Attributes:
        plan: the cells.
        measures: what is compared, by column: tasks of several kinds have scores of their own.
        places: numbers by row and column.
        compared: which rows are compared over which seeds, by column.
        rivals: the other rows of each column, by row and column.
        agreements: agreement with the published order of the rows, by column.
        overall: comparison of the rows over all columns.
        signs: what the signs in the table mean.
        notes: further sentences for below it.
        states: of all cells.
        made: date and training time, which differ each time that the table is made.
        received: what a client receives in a round, by row and column.
    """

    plan: Plan
    measures: dict[str, Measure]
    places: dict[tuple[str, str], TableCell]
    compared: dict[str, Comparable]
    rivals: dict[tuple[str, str], Rival]
    agreements: dict[str, Agreement]
    overall: Overall | None
    signs: list[str]
    notes: list[str]
    states: list[CellState] = field(repr=False)
    made: str = ""
    received: dict[tuple[str, str], RoundTraffic] = field(default_factory=dict)

    @property
    def rows(self) -> list[str]:
        """Names of the rows."""
        return list(self.plan.study.rows)

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        return list(self.plan.study.columns)

    @property
    def measure(self) -> Measure:
        """The measure of the first column."""
        return self.measures[self.columns[0]]

    @property
    def about(self) -> str:
        """A description of the measures; columns are named if their measures differ."""
        return _about(self.measures)

    @property
    def best(self) -> dict[str, str]:
        """The row with the best mean of each column; of equal rows, the first."""
        return {column: found.best for column, found in self.compared.items()}

    def is_best(self, row: str, column: str) -> bool:
        """Return True if the row has the best mean of its column, alone or with others."""
        return column in self.compared and self.compared[column].is_best(row)

    @cached_property
    def further(self) -> dict[str, dict[str, str]]:
        """Further columns after those of the study: what a client of each row receives, if a run has recorded it."""
        said = {row: in_words(self.received[row, column] for column in self.columns) for row in self.rows}
        return {HEADING: said} if any(said.values()) else {}

    @property
    def title(self) -> str:
        """The title, in one line."""
        return self.plan.title


def make_table(plan: Plan, measure: Measure | None = None) -> Table:
    """Read all cells, compare the rows, and write the notes.

    Args:
        plan: cells of the study.
        measure: number to compare; None: the one that the study names.
    """
    states = {key: state_of(cell) for key, cell in plan.cells.items()}
    measure = measure or plan.study.measure.where_validated(are_validated(list(states.values())))
    published = plan.study.published_as(measure)
    without = ""
    if plan.study.published and not published:
        without = f"without the published numbers, which are not {measure.name}"
    plan = replace(plan, study=replace(plan.study, published=published))
    done = [state for state in states.values() if state.is_done]
    measures = _measures(plan, done, measure)
    if isinstance(measure, RoundsToReach):
        require_one_score(measure.target, {state.cell.column: state.score for state in done})
    places = {
        (row, column): _place(
            plan, row, column, [states[c.row, c.column, c.seed] for c in plan.of(row, column)], measures[column]
        )
        for row in plan.study.rows
        for column in plan.study.columns
    }
    received = {
        (row, column): received_by(states[cell.row, cell.column, cell.seed] for cell in plan.of(row, column))
        for row, column in places
    }
    apart = list(unlike(done, list(plan.study.rows)))
    whole = {key: replace(place, values={}) if place.is_partly_reached else place for key, place in places.items()}
    compared = _compared(plan, whole, measures)
    rivals = {
        key: rival for c, found in compared.items() for key, rival in _rivals(c, found.best, whole, apart).items()
    }
    agreements = _agreements(plan, compared)
    overall = _overall(plan, compared, measures)
    notes = [
        *_caption(plan, measures),
        *compared_at(measures),
        *about_excluded(plan.study.exclude),
        *about_conditions(plan, done),
        *[ABOUT] * any(one != RoundTraffic() for one in received.values()),
        *[without] * bool(without),
        *_too_few_seeds(rivals),
        *_no_stars(rivals),
        *_versions(done),
        *about_code(plan, list(states.values())),
        *sentences(apart),
        *about_seeds(compared, {key: place.values for key, place in whole.items()}),
        *partly_reached((key, len(place.values), place.asked) for key, place in places.items()),
        *_of_agreement(plan, agreements),
        *_of_overall(overall),
        *_attacked(done),
        *_diverged(done),
        *_broken(done, measures),
        *_undefined(done, measures),
        *_unfinished(list(states.values()), places),
    ]
    signs = list(_signs(plan, done, rivals))
    return Table(
        plan,
        measures,
        places,
        compared,
        rivals,
        agreements,
        overall,
        signs,
        notes,
        list(states.values()),
        _made(done),
        received,
    )


def _measures(plan: Plan, done: list[CellState], measure: Measure) -> dict[str, Measure]:
    """Return the measure of each column, with its task's score; a column without finished cells gets another one's."""
    found: dict[str, Score] = {}
    for state in done:
        found.setdefault(state.cell.column, state.score)
    other = next(iter(found.values()), Score())
    runs: dict[str, dict[int, dict[str, Path]]] = {column: {} for column in plan.study.columns}
    for state in done:
        if state.run is not None:
            runs[state.cell.column].setdefault(state.cell.seed, {})[state.cell.label] = state.run
    return {column: measure.of_task(found.get(column, other)).of_runs(of_column) for column, of_column in runs.items()}


def _place(plan: Plan, row: str, column: str, states: list[CellState], measure: Measure) -> TableCell:
    published = plan.study.published.get(row, {}).get(column)
    values = {s.cell.seed: value for s in states if (value := s.number(measure)) is not None}
    if plan.study.is_left_out(row, column):
        return TableCell({}, published, "–")
    if (row, column) in plan.missing:
        return TableCell({}, published, "not in the library")
    if not states:
        return TableCell({}, published, "excluded")
    if any(state.is_broken(measure) for state in states):
        return TableCell({}, published, BROKEN)  # a mean over the other seeds would look too good
    if isinstance(measure, RoundsToReach):
        tried = [s for s in states if s.is_done and measure.has_score(s.summary, s.run)]
        if tried:
            return _reached(tried, values, measure)
        if any(state.is_done for state in states):
            return TableCell({}, published, "no test score")
    if values:
        return TableCell(values, published)
    if any(state.is_done for state in states):
        return TableCell({}, published, f"no {measure.name}")
    words = Counter(state.word for state in states)
    word = next((w for w in UNDONE if words[w]), "waiting")
    return TableCell({}, published, word)


def _reached(states: list[CellState], values: dict[int, float], measure: RoundsToReach) -> TableCell:
    found = {state.cell.seed: measure.bytes_until(state.summary, state.run) for state in states}
    received = {seed: number for seed, number in found.items() if number is not None}
    return TableCell(values, None, "" if values else "not reached", len(states), received)


def _compared(
    plan: Plan, places: Mapping[tuple[str, str], TableCell], measures: Mapping[str, Measure]
) -> dict[str, Comparable]:
    values = {c: {row: places[row, c].values for row in plan.study.rows} for c in plan.study.columns}
    found = {c: over_common_seeds(of_rows, measures[c].lower_is_better) for c, of_rows in values.items()}
    return {column: rows for column, rows in found.items() if rows is not None}


def _rivals(
    column: str, best: str, places: Mapping[tuple[str, str], TableCell], apart: list[Unlike]
) -> dict[tuple[str, str], Rival]:
    pairs: dict[tuple[str, str], bool] = {}  # whether the row and the best one can be paired
    for (row, where), place in places.items():
        if where == column and row != best and place.values:
            broken = any(not u.is_compared and u.row in (row, best) and column in u.columns for u in apart)
            pairs[row, column] = not broken and bool(place.values.keys() & places[best, column].values.keys())
    rows = 1 + sum(pairs.values())
    found = {
        key: paired_difference(places[best, column].values, places[key].values, rows) if paired else None
        for key, paired in pairs.items()
    }
    tested = {key: d.p for key, d in found.items() if d is not None and d.p is not None}
    ps = dict(zip(tested, adjusted(list(tested.values())), strict=True))
    known = {key: d for key, d in found.items() if d is not None}
    judged = judged_among(known)
    of_t = dict(zip(judged, adjusted([p_of(known[key]) for key in judged]), strict=True))
    return {
        key: Rival(difference, ps.get(key), of_t.get(key, 1.0), len(of_t) + 1 if key in of_t else 0)
        for key, difference in found.items()
    }


def _agreements(plan: Plan, compared: Mapping[str, Comparable]) -> dict[str, Agreement]:
    found = {}
    for column, rows in compared.items():
        inside = {row: plan.study.published.get(row, {}).get(column) for row in plan.study.rows}
        tau = agreement({row: one.mean for row, one in inside.items() if one is not None}, rows.means)
        if tau is not None:
            found[column] = tau
    return found


def _overall(plan: Plan, compared: Mapping[str, Comparable], measures: Mapping[str, Measure]) -> Overall | None:
    """Compare rows over columns: all rows that are compared in a column, over the columns in which all of them are.

    If columns have scores of several kinds, only ranks are compared, since differences have several units.
    """
    rows = [row for row in plan.study.rows if any(row in found.means for found in compared.values())]
    columns = [column for column, found in compared.items() if all(row in found.means for row in rows)]
    kinds = {measures[column].score.name if measures[column].is_score else "" for column in columns}
    signs = {column: -1 if measures[column].lower_is_better else 1 for column in columns}
    means = {row: [signs[column] * compared[column].means[row] for column in columns] for row in rows}
    overall = over_columns(means)
    return overall if overall is None or len(kinds) == 1 else replace(overall, against_best={})


# --- what is said below a table ---------------------------------------------------------------------------------------
def _about(measures: Mapping[str, Measure]) -> str:
    words: dict[str, list[str]] = {}
    for column, measure in measures.items():
        words.setdefault(f"{measure.name}: {measure.about}", []).append(column)
    if len(words) == 1:
        return next(iter(words))
    return ". ".join(f"{enumerated(columns)}: {said}" for said, columns in words.items())


def _caption(plan: Plan, measures: Mapping[str, Measure]) -> Iterator[str]:
    seeds = ", ".join(map(str, plan.seeds))
    over = f"mean ± standard deviation over seeds {seeds}" if len(plan.seeds) > 1 else f"of seed {seeds} alone"
    yield (f"{_about(measures)}; {over} (each a split and first models of its own, the same for all rows)")
    if plan.study.note:
        yield plan.study.note
    yield from tuning.caption(plan.study, plan.folder, plan.scale)
    yield from tuning.tuned_with_other_code(plan)
    if plan.scale < 1:
        yield f"scaled: all counts of rounds times {plan.scale:g}"


def _versions(done: list[CellState]) -> Iterator[str]:
    versions = {f"{name} {v}" for s in done for name, v in s.summary.get("versions", {}).items() if name in _SHOWN}
    commits = sorted({commit for s in done if (commit := commit_of(s.cell))})
    about = [*sorted(versions), *([f"commit {', '.join(commits)}"] if commits else [])]
    if about:
        yield "; ".join(about)


def _too_few_seeds(rivals: Mapping[tuple[str, str], Rival]) -> Iterator[str]:
    """Name the columns with too few seeds to judge a difference, and the number of seeds that is needed."""
    needed: dict[int, list[str]] = {}
    for column in dict.fromkeys(column for _, column in rivals):
        few = [r for (_, c), r in rivals.items() if c == column and r.has_interval and not r.among]
        if few:
            needed.setdefault(least_seeds(len(few) + 1), []).append(column)
    for seeds, columns in needed.items():
        yield f"too few seeds to tell rows apart in {', '.join(columns)}: so many rows take {counted(seeds, 'seed')}"


def _no_stars(rivals: Mapping[tuple[str, str], Rival]) -> Iterator[str]:
    """Name the columns in which no row can have a star, and the number of seeds that is needed."""
    poor: dict[tuple[int, int], list[str]] = {}
    for column in dict.fromkeys(column for _, column in rivals):
        seeds = _seeds_of_differences(rivals, column)
        if seeds and not _stars_are_possible(rivals, column):
            poor.setdefault((len(seeds), max(seeds)), []).append(column)
    for (pairs, most), columns in poor.items():
        rows = counted(pairs + 1, "row")
        yield (
            f"no * is possible in {', '.join(columns)}: among {rows}, p < {SIGNIFICANT} (sign-flip test, adjusted) "
            f"takes {least_replications(pairs_among(pairs + 1))} seeds or more; here {_number_with_verb(most)}"
        )


def _number_with_verb(seeds: int) -> str:
    return f"{'is' if seeds == 1 else 'are'} {seeds}"


def _stars_are_possible(rivals: Mapping[tuple[str, str], Rival], column: str) -> bool:
    tested = [seeds for seeds in _seeds_of_differences(rivals, column) if seeds >= least_replications()]
    return bool(tested) and max(tested) >= least_replications(pairs_among(len(tested) + 1))


def _seeds_of_differences(rivals: Mapping[tuple[str, str], Rival], column: str) -> list[int]:
    return [rival.difference.count for (_, c), rival in rivals.items() if c == column and rival.difference is not None]


def _signs(plan: Plan, done: list[CellState], rivals: Mapping[tuple[str, str], Rival]) -> Iterator[str]:
    most = _most_seeds(plan, done)
    if any(plan.study.published.values()):
        yield "[published, measured − published]"
    if most > 1:
        yield (
            "bold: the best mean of a column; ≈: not told apart from it (paired t-tests, adjusted for all pairs of "
            "rows: p ≥ 0.05, or too few seeds for so many rows)"
        )
    if any(_stars_are_possible(rivals, column) for _, column in rivals):
        yield "*: exact sign-flip test of the paired differences to the best, p < 0.05, adjusted for all pairs of rows"


def _most_seeds(plan: Plan, done: list[CellState]) -> int:
    """Return the number of seeds of the place that has most; the planned number if no cell is done."""
    return max(Counter((s.cell.row, s.cell.column) for s in done).values(), default=len(plan.seeds))


_SHOWN = ("python", "dfl_lightning", "torch", "lightning", "numpy")


def _made(done: list[CellState]) -> str:
    cells = {s.cell.folder: s for s in done}.values()  # a cell may have several places in the table
    trained = f"{counted(len(cells), 'cell')} in {as_time(sum(s.seconds or 0.0 for s in cells))} of training"
    where = where_made(s.summary.get("processor") for s in cells)
    return f"{time.strftime('%Y-%m-%d %H:%M')}, {trained}{where}"


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
    if not overall.against_best:
        return
    pairs = ", ".join(f"{row} {p:.2g}" for row, p in overall.against_best.items())
    yield f"{overall.best} against the others over these columns (Wilcoxon's signed-rank test, adjusted): p = {pairs}"
    tests = pairs_among(len(overall.against_best) + 1)
    if (least := least_p(overall.columns, tests)) >= SIGNIFICANT:
        yield (
            f"in {overall.columns} columns none of these p can be below {least:.2g}: for p < {SIGNIFICANT} the test "
            f"needs {least_replications(tests)} columns"
        )


def _diverged(done: list[CellState]) -> Iterator[str]:
    """Name the cells in which clients have diverged; their scores are in the means."""
    cells = {s.cell.folder: s for s in done if s.summary.get("diverged")}.values()
    if cells:
        parts = [f"{s.cell.label} ({len(s.summary['diverged'])} of {s.summary['clients']} clients)" for s in cells]
        yield f"training diverged in {', '.join(parts)}; these numbers are in the means"


def _attacked(done: list[CellState]) -> Iterator[str]:
    """Name the attacks, and the cells under each."""
    found: dict[str, list[str]] = {}
    for state in done:
        if "attack" in state.summary:
            attack, clients = state.summary["attack"], state.summary["clients"]
            words = f"{' and '.join(attack['by'])}, {len(attack['clients'])} of {clients} clients"
            found.setdefault(words, []).append(f"{state.cell.row} in {state.cell.column}")
    for words, places in found.items():
        yield f"under attack ({words}), scores over honest clients: {', '.join(dict.fromkeys(places))}"


def _broken(done: list[CellState], measures: Mapping[str, Measure]) -> Iterator[str]:
    """Name the cells whose number is not finite, with the number of such clients if known."""
    cells = {s.cell.folder: s for s in done if s.is_broken(measures[s.cell.column])}.values()
    if cells:
        clients = [len(s.score.numbers(s.summary).get("not_finite", ())) for s in cells]
        parts = [f"{s.cell.label} ({n} clients)" if n else s.cell.label for s, n in zip(cells, clients, strict=True)]
        yield f"{BROKEN}: the number of a client or of the run is NaN or infinite in {', '.join(parts)}"


def _undefined(done: list[CellState], measures: Mapping[str, Measure]) -> Iterator[str]:
    """Name the cells whose number is undefined for some clients, which are left out of its mean."""
    found: dict[tuple[str, str], dict[Path, str]] = {}
    for state in done:
        measure = measures[state.cell.column]
        column = measure.score.column if measure.is_score else measure.key
        entry = state.summary.get("metrics", {}).get(column)
        if entry and entry["undefined"]:
            count = f"{entry['undefined']} of {entry['clients']} clients"
            found.setdefault((column, count), {})[state.cell.folder] = state.cell.label
    cells = {state.cell.folder for state in done}
    for (column, count), places in found.items():
        where = "all cells" if len(places) == len(cells) else ", ".join(places.values())
        yield f"{column} is undefined for {count} in {where}, and they are left out of its mean"


def _unfinished(states: list[CellState], places: Mapping[tuple[str, str], TableCell]) -> Iterator[str]:
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
