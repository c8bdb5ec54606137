"""Judge the numbers in docs/results/*.csv by today's rule, and write the verdicts into tables and CSV without training.

    python scripts/judge_results.py [NAME ...]

The CSV of a table has the number of each seed. From these come the best row of each column, the paired differences, the
adjusted p, the signs `≈` and `*` and the notes on them; everything else of a page stays as it is.
"""

from __future__ import annotations

import argparse
import csv
import io
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

from dfl_lightning.bench.stats.common_seeds import Comparable, over_common_seeds
from dfl_lightning.bench.stats.statistics import Overall, over_columns
from dfl_lightning.bench.stats.words import spread_in_words
from dfl_lightning.bench.study.tables.formats import rival_in_words
from dfl_lightning.bench.study.tables.measures.measure import Measure
from dfl_lightning.bench.study.tables.received import HEADING
from dfl_lightning.bench.study.tables.table import (
    Rival,
    TableCell,
    _no_stars,
    _of_overall,
    _rivals,
    _stars_are_possible,
    _too_few_seeds,
)

PAGES = Path(__file__).parents[1] / "docs" / "results"
HEAD = ["column", "best − row", "mean", "95 % interval of this pair", "p (t, adjusted)", "p (signs, adjusted)"]
HEAD += ["seeds", "seeds needed"]
PS = ["p_t_adjusted", "p_signs_adjusted"]
SIGNS = (
    "bold: the best mean of a column; ≈: not told apart from it (paired t-tests, adjusted for all pairs of rows: "
    "p ≥ 0.05, or too few seeds for so many rows)"
)
STAR = "*: exact sign-flip test of the paired differences to the best, p < 0.05, adjusted for all pairs of rows"
WIDTH = 120

Place = tuple[str, str]
Lines = dict[Place, dict[str, str]]


def main() -> int:
    """Judge the tables that are named, or all; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="of a table; none: all")
    for name in parser.parse_args().names or sorted(path.stem for path in PAGES.glob("*.csv")):
        page, numbers = (PAGES / f"{name}.{kind}" for kind in ("md", "csv"))
        for file, text in zip((page, numbers), judged(*map(_read, (page, numbers))), strict=True):
            file.write_text(text, encoding="utf-8", newline="")
    return 0


def judged(page: str, numbers: str) -> tuple[str, str]:
    """Return a page and its CSV with what today's rule says of their numbers.

    Args:
        page: Markdown with the table, its differences and its notes.
        numbers: the CSV of the same table.

    Raises:
        ValueError: another row than the page's has the best mean, or the page has no such table.
    """
    lines = {(line["row"], line["column"]): line for line in csv.DictReader(io.StringIO(numbers))}
    values = {place: _seeds(line["seeds"]) for place, line in lines.items()}
    compared = {column: _compared(column, lines, values) for column in dict.fromkeys(column for _, column in lines)}
    places = {place: TableCell(of, None) for place, of in values.items()}
    rivals = {key: r for column, c in compared.items() for key, r in _rivals(column, c.best, places, []).items()}
    for (row, column), line in lines.items():
        if compared[column].is_best(row) != (line["is_best"] == "True"):
            raise ValueError(f"{row} in {column}: is_best is {line['is_best']}, but its mean says the contrary")
    return _page(page, lines, compared, rivals), _csv(lines, rivals)


def _compared(column: str, lines: Lines, values: dict[Place, dict[int, float]]) -> Comparable:
    means = {row: float(line["mean"]) for (row, where), line in lines.items() if where == column and line["mean"]}
    best = next(row for row in means if lines[row, column]["is_best"] == "True")
    lower = means[best] == min(means.values()) and len(set(means.values())) > 1
    found = over_common_seeds({row: values[row, column] for row in means}, lower_is_better=lower)
    assert found is not None  # there is a row, and its seeds are known
    return found


def _seeds(text: str) -> dict[int, float]:
    """Read `0:81.5 1:82.0`."""
    return {int(seed): float(value) for seed, value in (part.split(":") for part in text.split())}


# --- the CSV ----------------------------------------------------------------------------------------------------------
def _csv(lines: Lines, rivals: dict[Place, Rival]) -> str:
    names = [name for name in next(iter(lines.values())) if name not in ("p_holm", *PS)]
    at = names.index("interval_high") + 1
    names[at:at] = PS
    out = io.StringIO()
    writer = csv.DictWriter(out, names, lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    for place, line in lines.items():
        rival = rivals.get(place)
        d = rival.difference if rival else None
        values = [d and d.mean, d and d.low, d and d.high, rival and (rival.p_of_t if rival.among else None)]
        values += [rival and rival.p, d and d.seeds_needed]
        keys = ["best_minus_row", "interval_low", "interval_high", *PS, "seeds_needed"]
        writer.writerow({**line, **dict(zip(keys, values, strict=True))})
    return out.getvalue()


# --- the page ---------------------------------------------------------------------------------------------------------
def _page(page: str, lines: Lines, compared: dict[str, Comparable], rivals: dict[Place, Rival]) -> str:
    columns = list(compared)
    names = re.escape(" | ".join(columns))
    found = re.search(rf"\n\|  \| {names}( \| {re.escape(HEADING)})? \|\n", page)
    if found is None:
        raise ValueError(f"the page has no table with the columns {', '.join(columns)}")
    head = found[0]
    before, rest = page.split(head, 1)  # pages with a second table of other numbers have it below
    table, rest = _block(rest, "|")
    marked = [table[0], *(_marked(line, columns, rivals) for line in table[1:])]
    between, rest = rest.split("| column | best − row |", 1)
    _, rest = rest.split("\n", 1)
    _, rest = _block(rest, "|")
    gap, rest = re.match(r"(\s*(?:</details>\s*)?)(.*)", rest, re.DOTALL).groups()  # type: ignore[union-attr]
    notes, rest = _notes(rest)
    percent = {column: _is_percent(column, columns, table[1:], lines) for column in columns}
    return "".join(
        [
            *(before, head, *marked, between, _line(HEAD), _line(["---"] * len(HEAD))),
            *(_line(_difference(key, rival, compared, percent)) for key, rival in rivals.items()),
            *(gap, *map(_wrapped, _today(notes, compared, rivals)), rest),
        ]
    )


def _marked(line: str, columns: list[str], rivals: dict[Place, Rival]) -> str:
    row, *texts = (cell.strip() for cell in line.strip().strip("|").split("|"))
    for at, column in enumerate(columns):
        bare = re.sub(r" [≈*](?= \[|$)", "", texts[at])
        sign = rivals[row, column].sign if (row, column) in rivals else ""
        number, bracket, published = bare.partition(" [")
        texts[at] = f"{number}{' ' + sign if sign else ''}{bracket}{published}"
    return _line([row, *texts])


def _is_percent(column: str, columns: list[str], table: list[str], lines: Lines) -> bool:
    """Return True if all numbers of a column have two decimals."""
    for line in table:
        row, *texts = (cell.strip() for cell in line.strip().strip("|").split("|"))
        numbers = lines[row, column]
        said = f"{float(numbers['mean']):.2f}" if numbers["mean"] else ""
        if numbers["sd"]:
            sd = float(numbers["sd"])
            said += f" ± {spread_in_words(sd, f'{sd:.2f}')}"
        if said not in texts[columns.index(column)]:
            return False
    return True


def _difference(key: Place, rival: Rival, compared: dict[str, Comparable], percent: dict[str, bool]) -> list[str]:
    row, column = key
    measure = Measure("last") if percent[column] else Measure("number", "last")
    return [column, f"{compared[column].best} − {row}", *rival_in_words(rival, measure)]


def _block(text: str, mark: str) -> tuple[list[str], str]:
    """Split the lines that begin with a mark from what follows."""
    lines = text.splitlines(keepends=True)
    end = next((at for at, line in enumerate(lines) if not line.startswith(mark)), len(lines))
    return lines[:end], "".join(lines[end:])


def _notes(text: str) -> tuple[list[str], str]:
    """Split the items of a list, each as one line, from what follows."""
    found = re.match(r"(?:- .*\n(?:  .*\n)*)+", text)
    assert found is not None, "below the differences are notes"
    items = re.findall(r"- .*\n(?:  .*\n)*", found[0])
    return [" ".join(item[2:].split()) for item in items], text[found.end() :]


def _today(notes: list[str], compared: dict[str, Comparable], rivals: dict[Place, Rival]) -> Iterator[str]:
    """Yield the notes with those on tests in today's words, each in its place."""
    stars = any(_stars_are_possible(rivals, column) for column in compared)
    overall = list(_of_overall(_overall(compared)))
    poor = [*_too_few_seeds(rivals), *_no_stars(rivals)]
    for note in notes:
        if note.startswith("bold:"):
            yield from [SIGNS, *[STAR] * stars]
        elif note.startswith(("no * is possible", "too few seeds to tell", "dfl_lightning ")):
            yield from poor
            poor = []
            if note.startswith("dfl_lightning "):
                yield note
        elif note.startswith("mean ranks over"):
            yield from overall
        elif not note.startswith("*:") and not re.search(r"against the others over|none of these p can be below", note):
            yield note


def _overall(compared: dict[str, Comparable]) -> Overall | None:
    """Compare the rows over the columns that have all of them, as `dfl-study table` does."""
    rows = list(dict.fromkeys(row for found in compared.values() for row in found.means))
    columns = [found for found in compared.values() if all(row in found.means for row in rows)]
    signs = [-1 if found.lower_is_better else 1 for found in columns]
    return over_columns({row: [s * c.means[row] for s, c in zip(signs, columns, strict=True)] for row in rows})


def _wrapped(note: str) -> str:
    lines = textwrap.wrap(f"- {note}", WIDTH, subsequent_indent="  ", break_on_hyphens=False, break_long_words=False)
    return "\n".join(lines) + "\n"


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |\n"


def _read(file: Path) -> str:
    return file.read_text(encoding="utf-8")


if __name__ == "__main__":
    raise SystemExit(main())
