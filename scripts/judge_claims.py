"""Compute the differences behind the verdicts of docs/claims.md from the CSV files in docs/results, without training.

    python scripts/judge_claims.py

scripts/claims.yaml names the pairs of rows of each claim. The page docs/claims_differences.md has their mean difference
over seeds, its simultaneous interval, its p and a verdict. Intervals and p are for all pairs of rows of a column.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from dfl_lightning.bench.stats.multiple import p_of, simultaneous
from dfl_lightning.bench.stats.statistics import SIGNIFICANT, Interval, paired_interval
from dfl_lightning.bench.study.tables.formats import signed
from dfl_lightning.bench.study.tables.measures.measure import Measure

ROOT = Path(__file__).parents[1]
RESULTS, PAGE = ROOT / "docs" / "results", ROOT / "docs" / "claims_differences.md"
HEAD = """\
# The differences behind the verdicts

`python scripts/judge_claims.py` makes this page from the CSV files of the [results](results.md), for the
[claims](claims.md) about a difference of two rows of a study. Differences are paired by seed, in points where numbers
are percentages. The intervals are simultaneous: with 95 % those of all pairs of rows of a column hold at once
(Bonferroni). The p of the paired t-tests are adjusted for the same pairs by Holm's method, which tells some pairs apart
whose interval contains zero. The tables of the results adjust the p of comparisons with the best row by a closed
procedure, and may have a smaller p.

A difference is *confirmed* if p < 0.05 and it has the claimed sign, *contradicted* if p < 0.05 and it has another one,
and otherwise *not told apart*. A claim of "the same", "close" or "little", `= 0`, is confirmed by equal
numbers in all seeds only, not by a test: the interval says how large the difference may be.
"""
COLUMNS = (
    "column",
    "difference",
    "claimed",
    "mean",
    "simultaneous 95 % interval",
    "p, adjusted",
    "seeds",
    "here",
)
LIMITS = {"after": "after", "until": "up to"}
SIGNS = {"+": "> 0", "-": "< 0", "=": "= 0"}

Numbers = dict[str, dict[str, dict[int, float]]]
"""Numbers of a study by column, row and seed."""


def main() -> int:
    """Write the page; returns the exit code."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    PAGE.write_text(page(), encoding="utf-8")
    return 0


def page() -> str:
    """Return the text of the page."""
    claims = yaml.safe_load((ROOT / "scripts" / "claims.yaml").read_text(encoding="utf-8"))
    parts = [HEAD]
    for words, entries in itertools.groupby(claims, key=lambda claim: claim["claim"]):
        parts.append(f"## {words}\n")
        for entry in entries:
            head = ("row", *COLUMNS[1:]) if "between" in entry else COLUMNS
            table = [_line(head), _line(["---"] * len(COLUMNS)), *_lines(entry)]
            parts.append("\n".join([f"{_source(entry)}:\n", *table, ""]))
    return "\n".join(parts)


def _source(claim: Mapping[str, Any]) -> str:
    """Name the study and the numbers that are compared."""
    study = f"[`{claim['study']}`](results/{claim['study']}.md)"
    rounds, beyond = claim.get("rounds"), claim.get("beyond")
    if rounds is not None:
        after, until = (f"{words} round {rounds[key] + 1}" if key in rounds else "" for key, words in LIMITS.items())
        what = (
            "mean change from one round that has it to the next"
            if rounds.get("changes")
            else "mean over the rounds that have it"
        )
        return " ".join(filter(None, [f"{study}, `{rounds['number']}`, {what}", after, until]))
    if beyond is not None:
        return f"{study}, beyond the same difference in `{beyond['study']}`, {beyond['column']}"
    if "between" in claim:
        return f"{study}, a row in two of the {claim['between']}"
    return study


def _lines(claim: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of a claim's pairs, column by column, or row by row for pairs of columns."""
    numbers = _numbers(claim["study"], claim.get("rounds"))
    if "between" in claim:  # columns change places with rows
        numbers = {row: {column: numbers[column][row] for column in numbers} for row in claim["rows"]}
    for column, rows in ((column, numbers[column]) for column in claim.get("columns", numbers)):
        pairs = list(itertools.combinations(rows, 2))
        values = {pair: _interval(rows, pair, claim.get("beyond")) for pair in pairs}
        ps = dict(zip(pairs, holm([p_of(value) for value in values.values()]), strict=True))
        for first, second in claim["pairs"]:
            turned = (first, second) not in values
            pair = (second, first) if turned else (first, second)
            value, p = values[pair], ps[pair]
            if turned:
                value = Interval(-value.mean, -value.high, -value.low, value.count)  # type: ignore[operator]
            wide = simultaneous(value, len(rows))
            ends = " to ".join(signed(end, Measure("last")) for end in (wide.low, wide.high) if end is not None)
            p_words = "< 0.001" if p < 0.001 else f"{p:.3f}"
            texts = [column, f"{first} − {second}", SIGNS[claim["sign"]], signed(value.mean, Measure("last")), ends]
            yield _line([*texts, p_words, str(value.count), verdict(value, p, claim["sign"])])


def _numbers(study: str, rounds: Mapping[str, Any] | None) -> Numbers:
    """Read the numbers of a study's table, or means over rounds of a column or its changes; shares are in percent."""
    found: Numbers = defaultdict(lambda: defaultdict(dict))
    if rounds is None:
        for line in _csv(RESULTS / f"{study}.csv"):
            for part in line["seeds"].split():
                number, _, value = part.partition(":")
                found[line["column"]][line["row"]][int(number)] = float(value)
        return found
    values: dict[tuple[str, str, int], list[float]] = defaultdict(list)
    factor = Measure(rounds["number"], "last").factor
    for line in _csv(RESULTS / "rounds" / f"{study}.csv"):
        if line[rounds["number"]] and rounds.get("after", -1) < int(line["round"]) <= rounds.get("until", 10**9):
            values[line["column"], line["row"], int(line["seed"])].append(factor * float(line[rounds["number"]]))
    for (column, row, seed), of_rounds in values.items():
        if rounds.get("changes"):
            of_rounds = [abs(later - earlier) for earlier, later in itertools.pairwise(of_rounds)]
        found[column][row][seed] = statistics.fmean(of_rounds)
    return found


def _interval(rows: Mapping[str, Mapping[int, float]], pair: tuple[str, str], beyond: Any) -> Interval:
    """Compute the difference of two rows, or by how much it exceeds their difference in a column of another study."""
    first, second = (rows[row] for row in pair)
    if beyond is not None:
        others = _numbers(beyond["study"], None)[beyond["column"]]
        first, second = (
            {seed: of[seed] - others[row][seed] for seed in of} for of, row in zip((first, second), pair, strict=True)
        )
    found = paired_interval([(first[seed], second[seed]) for seed in first if seed in second])
    assert found is not None  # the rows have seeds in common
    return found


def holm(ps: list[float]) -> list[float]:
    """Adjust p values by Holm's method; the order stays."""
    adjusted, highest = [1.0] * len(ps), 0.0
    for rank, at in enumerate(sorted(range(len(ps)), key=ps.__getitem__)):
        highest = max(highest, min(1.0, (len(ps) - rank) * ps[at]))
        adjusted[at] = highest
    return adjusted


def verdict(value: Interval, p: float, sign: str) -> str:
    """Say what a difference means for a claim of a sign."""
    if sign == "=" and value.low == value.high == 0:
        return "confirmed"
    if p >= SIGNIFICANT:
        return "not told apart"
    return "confirmed" if {"+": value.mean > 0, "-": value.mean < 0, "=": False}[sign] else "contradicted"


def _csv(file: Path) -> list[dict[str, str]]:
    with file.open(encoding="utf-8", newline="") as text:
        return list(csv.DictReader(text))


def _line(cells: Any) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    raise SystemExit(main())
