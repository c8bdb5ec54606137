"""A table as Markdown, CSV and LaTeX."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence

from dfl_lightning.bench.stats.statistics import Difference
from dfl_lightning.bench.stats.words import spread_in_words
from dfl_lightning.bench.study.file.exclude import of_place
from dfl_lightning.bench.study.tables.measures.measure import Measure
from dfl_lightning.bench.study.tables.table import Rival, Table, TableCell
from dfl_lightning.bench.study.tables.unequal import by_place
from dfl_lightning.utils.memory import size

_FOLDED = 12
"""Number of paired differences up to which Markdown shows them at once."""


def markdown(table: Table) -> str:
    """Format a table as Markdown, with the paired differences as a second table and the notes below."""
    head = ["", *table.columns, *table.further]
    lines = [f"**{table.title}**", "", _line(head), _line(["---"] * len(head))]
    for row in table.rows:
        cells = [_cell(table, row, column) for column in table.columns]
        lines.append(_line([row, *cells, *(said[row] for said in table.further.values())]))
    rows = differences_in_words(table)
    if rows:
        head = difference_heads()
        paired = [_line(head), _line(["---"] * len(head)), *map(_line, rows)]
        words = "Paired differences to the best"
        if len(rows) > _FOLDED:
            lines += ["", *_folded(f"{words}, {len(rows)} rows", paired)]
        else:
            lines += ["", f"{words}:", "", *paired]
    folded = {note: block for note in table.notes if (block := _folded_list(note))}
    notes = [f"- {note.partition(': ')[0]}: below" if note in folded else f"- {note}" for note in table.notes]
    signs = [f"- {sign}" for sign in table.signs]
    blocks = [line for block in folded.values() for line in block]
    return "\n".join([*lines, "", *signs, *notes, f"- made: {table.made}", *blocks, ""])


def _folded_list(note: str) -> list[str]:
    """Return the lines of a folded table for a long list of places and values; empty for any other note.

    Examples:
        >>> _folded_list("chosen: A: lr 0.1; B: lr 0.3")
        []
    """
    name, _, words = note.partition(": ")
    entries = [entry.rpartition(": ")[::2] for entry in words.split("; ")]
    if len(entries) <= _FOLDED or not all(place for place, _ in entries):
        return []
    rows = [_line(["", name]), _line(["---"] * 2), *(_line(entry) for entry in entries)]
    return ["", *_folded(f"{name[:1].upper()}{name[1:]}, {len(entries)} rows", rows)]


def _folded(summary: str, rows: Sequence[str]) -> list[str]:
    """Return the lines of a folded part, whose Markdown GitHub and MkDocs both read."""
    return ['<details markdown="1">', f"<summary>{summary}</summary>", "", *rows, "", "</details>"]


def as_csv(table: Table) -> str:
    """Format a table as CSV: a line for each row and column, with all digits of the numbers."""
    out = io.StringIO()
    names = ["row", "column", "measure", "scale", "n", "mean", "sd", "published", "published_sd", "difference"]
    names += ["is_best", "best_minus_row", "interval_low", "interval_high", "p_t_adjusted", "p_signs_adjusted"]
    names += ["seeds_needed", "remark", "seeds", "conditions", "excluded", "done", "bytes_until"]
    names += ["models_received", "bytes_received"]
    conditions = by_place(table.plan, table.states)
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(names)
    for (row, column), place in table.places.items():
        rival = table.rivals.get((row, column))
        d = rival.difference if rival else None
        published = place.published
        gap = None if published is None or place.mean is None else place.mean - published.mean
        values = [row, column, table.measures[column].name, table.plan.scale, len(place.values), place.mean, place.sd]
        values += [published and published.mean, published and published.sd, gap, table.is_best(row, column)]
        ps = [rival and (rival.p_of_t if rival.among else None), rival and rival.p]
        values += [d and d.mean, d and d.low, d and d.high, *ps, d and d.seeds_needed, place.remark]
        seeds = " ".join(f"{seed}:{value!r}" for seed, value in place.values.items())
        why = of_place(table.plan.study.exclude, row, column)
        received = table.received[row, column]
        values += [seeds, conditions.get((row, column), ""), why, *_reaching(place), received.models, received.bytes]
        writer.writerow(values)
    return out.getvalue()


def _reaching(place: TableCell) -> list[float | int | None]:
    """Return the number of finished seeds and the mean bytes until the value of `--reach`; None in other tables."""
    received = list(place.bytes.values())
    return [place.asked or None, sum(received) / len(received) if received else None]


def latex(table: Table) -> str:
    """Format a table as LaTeX for the package booktabs, with the notes in the caption."""
    head = " & ".join(["", *(_tex(column) for column in [*table.columns, *table.further])])
    places = f"l{'r' * len(table.columns)}{'l' * len(table.further)}"
    lines = [r"\begin{table}", r"\centering", rf"\begin{{tabular}}{{{places}}}", r"\toprule"]
    lines += [rf"{head} \\", r"\midrule"]
    for row in table.rows:
        cells = [_cell(table, row, column, bold=_tex_bold, plain=_tex) for column in table.columns]
        cells += [_tex(said[row]) for said in table.further.values()]
        lines.append(rf"{' & '.join([_tex(row), *cells])} \\")
    caption = " ".join(f"{_tex(note)}." for note in [table.title, *table.signs, *table.notes, f"Made: {table.made}"])
    lines += [r"\bottomrule", r"\end{tabular}", rf"\caption{{{caption}}}", rf"\label{{tab:{table.plan.study.name}}}"]
    return "\n".join([*lines, r"\end{table}", ""])


def cell_in_words(table: Table, row: str, column: str) -> str:
    """Return the text of a place in a table without any markup."""
    return _cell(table, row, column, bold=str)


def _cell(
    table: Table,
    row: str,
    column: str,
    bold: Callable[[str], str] = lambda text: f"**{text}**",
    plain: Callable[[str], str] = str,
) -> str:
    place, measure = table.places[row, column], table.measures[column]
    text = plain(number(place, measure) or place.remark)
    if table.is_best(row, column):
        text = bold(text)
    rival = table.rivals.get((row, column))
    if rival is not None and rival.sign:
        text += plain(f" {rival.sign}")
    seeds = place.seeds_in_words(len(table.plan.seeds))
    text += f" {seeds}" if seeds else ""
    if place.published is not None:
        gap = "" if place.mean is None else f", {signed(place.mean - place.published.mean, measure)}"
        text += plain(f" [{measure.text(place.published.mean)}{gap}]")
    return text


def number(place: TableCell, measure: Measure) -> str:
    """Format mean and standard deviation, and the bytes received until a value was reached; empty without a mean.

    Examples:
        >>> accuracy = Measure("last")
        >>> number(TableCell({0: 80.0, 1: 82.0}, None), accuracy), number(TableCell({}, None), accuracy)
        ('81.00 ± 1.41', '')
    """
    if place.mean is None:
        return ""
    mean = measure.text(place.mean)
    received = f", {size(sum(place.bytes.values()) / len(place.bytes))}" if place.bytes else ""
    return (
        f"{mean}{received}"
        if place.sd is None
        else f"{mean} ± {spread_in_words(place.sd, measure.like(place.sd, place.mean))}{received}"
    )


def difference_heads() -> list[str]:
    """Return the heads of the columns of `differences_in_words`."""
    heads = ["column", "best − row", "mean", "95 % interval of this pair", "p (t, adjusted)", "p (signs, adjusted)"]
    return [*heads, "seeds", "seeds needed"]


def differences_in_words(table: Table) -> list[list[str]]:
    """Return a row of texts for each paired difference to the best of a column."""
    return [
        [column, f"{table.best[column]} − {row}", *rival_in_words(rival, table.measures[column])]
        for (row, column), rival in table.rivals.items()
        if rival.difference is not None
    ]


def rival_in_words(rival: Rival, measure: Measure) -> list[str]:
    """Return the texts of a difference to the best: mean, interval, both p, number of seeds and seeds needed.

    Args:
        rival: a row with a difference.
        measure: what the column compares.

    Raises:
        ValueError: the rows have no seed in common.
    """
    d = rival.difference
    if d is None:
        raise ValueError("rows without a common seed have no difference")
    ps = [f"{rival.p_of_t:.3f}" if rival.among else "", "" if rival.p is None else f"{rival.p:.3f}"]
    return [signed(d.mean, measure), _interval(d, measure), *ps, str(d.count), _needed(d)]


def _interval(d: Difference, measure: Measure) -> str:
    if d.low is None or d.high is None:
        return "one seed: none"
    return f"{signed(d.low, measure)} to {signed(d.high, measure)}"


def _needed(d: Difference) -> str:
    return "more than 1000" if d.seeds_needed is None and d.count > 1 else str(d.seeds_needed or "")


def signed(value: float, measure: Measure) -> str:
    """Format a difference, in the measure's unit, with its sign; 0 has none.

    Examples:
        >>> signed(1.0, Measure("last")), signed(-0.001, Measure("last"))
        ('+1.00', '0.00')
    """
    text = measure.text(value)
    return f"{'−' if value < 0 else '+'}{text.lstrip('-')}" if float(text) else text.lstrip("-")


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


_TEX = {
    **{c: f"\\{c}" for c in "&%$#_{}"},
    **{"~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "\\": r"\textbackslash{}"},
    **{"±": r"$\pm$", "−": "$-$", "≈": r"$\approx$", "–": "--", "°": r"$^\circ$", "<": "$<$", ">": "$>$"},
    **{"α": r"$\alpha$", "τ": r"$\tau$", "≥": r"$\geq$", "≤": r"$\leq$", "×": r"$\times$"},
}


def _tex(text: str) -> str:
    r"""Escape the characters of a text that LaTeX would read as commands.

    Examples:
        >>> print(_tex("50 % ± 1_a"))
        50 \% $\pm$ 1\_a
    """
    return "".join(_TEX.get(character, character) for character in text)


def _tex_bold(text: str) -> str:
    return rf"\textbf{{{text}}}"
