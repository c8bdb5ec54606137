"""The opening of a study's page: its table with the published numbers, and sentences about the best rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from dfl_lightning.bench.report.charts.base import finished
from dfl_lightning.bench.report.charts.colours import colour_places
from dfl_lightning.bench.report.methods import Method, names_for_colours
from dfl_lightning.bench.report.page.opening import Opening
from dfl_lightning.bench.report.page.sections import Figure
from dfl_lightning.bench.report.page.tables import key
from dfl_lightning.bench.report.page.templates.filling import fill
from dfl_lightning.bench.stats.words import spread_in_words
from dfl_lightning.bench.study.tables.formats import number, signed
from dfl_lightning.bench.study.tables.picture import ROW, drawn_columns, panel, signs
from dfl_lightning.bench.study.tables.table import Table
from dfl_lightning.utils.words import counted, enumerated

if TYPE_CHECKING:
    from markupsafe import Markup

_FRAME = 50
"""Pixels of a panel's axis and its title."""


def opening(table: Table, methods: Sequence[Method]) -> Opening:
    """Build the first section of a study's page.

    Args:
        table: numbers of the study.
        methods: methods of the page; their order determines their colours.
    """
    names = names_for_colours(methods)
    first, *further = sentences(table)
    body = fill(
        "study_opening.html",
        table=html(table, names),
        signs=". ".join(_capital(sign) for sign in _signs(table)),
        sentences=" ".join(further),
        notes=[*table.notes, f"made: {table.made}"],
        signs_of_charts=signs(table),
    )
    return Opening(first, body, _panels(table, names))


def sentences(table: Table) -> Iterator[str]:
    """Summarise a table over all of its columns in sentences; the first one names the best rows."""
    columns = {column: found for column, found in table.compared.items() if len(found.means) > 1}
    if not columns:
        yield "No two rows have a number in the same column yet."
    else:
        yield _best_rows(table, list(columns))
        yield from _certainty(table, list(columns))
    yield from _against_paper(table)
    done = [state.is_done for state in {state.cell.folder: state for state in table.states}.values()]
    if not all(done):
        number_of_open = done.count(False)
        yield f"{number_of_open} of {counted(len(done), 'cell')} {'is' if number_of_open == 1 else 'are'} not done."


def _best_rows(table: Table, columns: Sequence[str]) -> str:
    """Name the rows that can be told apart from all others, and those with the best mean, most columns first."""
    won = {row: [c for c in columns if table.is_best(row, c)] for row in table.rows}
    order = sorted((row for row in table.rows if won[row]), key=lambda row: -len(won[row]))
    told = told_apart(table, columns)
    if len(columns) == 1:
        place, measure = table.places[order[0], columns[0]], table.measures[columns[0]]
        rows, where = enumerated(order), f" in {columns[0]}" * (len(table.columns) > 1)
        has = "is best" if told else f"{'has' if len(order) == 1 else 'have'} the {_best_mean(table, columns)}"
        return f"{rows} {has}{where}: {number(place, measure)}{measure.unit}."
    of = f"{_compared(table, columns)}columns"
    apart = {row: [c for c in won[row] if c in told] for row in order}
    if len(apart[order[0]]) == len(columns):
        return f"{order[0]} can be told apart from all others in {_all(len(columns))} {of}."
    parts = []
    for row in (row for row in order if apart[row]):
        parts.append(f"{row} can be told apart from all others in {len(apart[row])}")
        parts[-1] += f" of {len(columns)} {of}" * (len(parts) == 1) + _named(apart[row], columns)
    if not parts:
        parts = [f"No row can be told apart from all others in any of {len(columns)} {of}"]
    ties = {c: tied for c in columns if len(tied := [row for row in order if c in won[row]]) > 1}
    alone = {row: [c for c in won[row] if c not in ties] for row in order}
    means = [f"{row} in {len(of)}{_named(of, columns)}" for row, of in alone.items() if of]
    means += [f"{enumerated(tied)} equal in {column}" for column, tied in ties.items()]
    return f"{enumerated(parts)}; {_best_mean(table, columns)}: {enumerated(means)}."


def told_apart(table: Table, columns: Sequence[str]) -> list[str]:
    """Return those of the columns in which the seeds tell the best row from every other row."""
    rivals = {c: [rival for (_, at), rival in table.rivals.items() if at == c] for c in columns}
    return [c for c, of in rivals.items() if of and all(r.has_interval and not r.is_undecided for r in of)]


def _all(columns: int) -> str:
    return "both" if columns == 2 else f"all {columns}"


def _named(some: Sequence[str], columns: Sequence[str]) -> str:
    """Return the names of columns in brackets; empty if the table has many columns."""
    return f" ({', '.join(some)})" if len(columns) <= _FEW else ""


def _best_mean(table: Table, columns: Sequence[str]) -> str:
    """Return `highest mean` or `lowest mean` if this is the best one in all columns, otherwise `best mean`."""
    found = {table.measures[column].lower_is_better for column in columns}
    return "best mean" if len(found) > 1 else f"{'lowest' if True in found else 'highest'} mean"


_FEW = 6
"""Number of columns up to which sentences name them."""


def _certainty(table: Table, columns: Sequence[str]) -> Iterator[str]:
    """Say in which columns the seeds tell the best row from all others, and in which they do not."""
    rivals = {c: {row: rival for (row, at), rival in table.rivals.items() if at == c} for c in columns}
    judged = {c: [row for row, rival in of.items() if rival.has_interval] for c, of in rivals.items()}
    if not any(judged.values()):
        paired = any(rival.difference for of in rivals.values() for rival in of.values())
        why = "With one seed" if paired else "Without rows that are paired with the best"
        yield f"{why} there is no verdict on any difference."
        return
    told = told_apart(table, columns)
    several = len(table.columns) > 1
    if len(told) == len(columns):
        where = f" of its column, in all {'that are compared' if _compared(table, columns) else 'of them'}" * several
        yield f"The seeds tell the best row from every other{where}."
        return
    if len(columns) > _FEW:
        of = f"{len(told)} of {len(columns)} {_compared(table, columns)}columns"
        yield f"The seeds tell the best row from every other in {of}."
        return
    for column, found in rivals.items():
        undecided = [row for row, rival in found.items() if rival.is_undecided]
        here, best = f"In {column} " * several, table.best[column]
        seeds = table.places[best, column].values.keys()
        other = [
            row
            for row, rival in found.items()
            if not rival.difference and seeds & table.places[row, column].values.keys()
        ]
        alone = [row for row in found if row not in judged[column] and row not in other]
        if undecided:
            yield _capital(f"{here}the seeds do not tell {enumerated(undecided)} from the best row, {best}.")
        if alone:
            few = f"fewer than two seeds are paired with those of the best row, {best}"
            yield _capital(f"{here}there is no verdict on {enumerated(alone)}: {few}.")
        if other:
            yield _capital(f"{here}there is no verdict on {enumerated(other)}: tested on other samples than {best}.")


def _compared(table: Table, columns: Sequence[str]) -> str:
    """Return `compared ` if these are fewer columns than the table has; otherwise an empty text."""
    return "compared " if len(columns) < len(table.columns) else ""


def _against_paper(table: Table) -> Iterator[str]:
    both = {at: p for at, p in table.places.items() if p.published is not None and p.mean is not None}
    columns = {column for _, column in both}
    if len(columns) > 1 and not all(table.measures[column].unit for column in columns):
        return  # numbers that are not in percent may have another unit in each column, so they have no mean
    gaps = [abs(p.mean - p.published.mean) for p in both.values() if p.mean is not None and p.published is not None]
    if gaps:
        measure = table.measures[min(columns)]
        mean, places = measure.text(sum(gaps) / len(gaps)), counted(len(gaps), "place")
        yield f"Measured and published numbers are {mean}{measure.points} apart, mean over {places}."


def html(table: Table, names: Sequence[str]) -> Markup:
    """Build the table as HTML, with published numbers as diamonds below the measured ones.

    Args:
        table: numbers of the study.
        names: names of the page's methods, in the order of their colours.
    """
    colours = {name: at for at, name in enumerate(colour_places(names))}
    rows = [
        {
            "name": row,
            "key": key(row, colours) if row in colours else None,
            "places": [_place(table, row, column) for column in table.columns],
            "further": [said[row] for said in table.further.values()],
        }
        for row in table.rows
    ]
    return fill("study.html", caption=_about(table), columns=[*table.columns, *table.further], rows=rows)


def _about(table: Table) -> str:
    """Return the caption of the table, with the words before the name of the number."""
    name, colon, words = table.about.partition(": ")
    return f"{_capital(words)} ({name})" if colon and " " not in name else table.about


def _place(table: Table, row: str, column: str) -> dict[str, Any]:
    """Return the texts of a place in the table; those without a value are empty."""
    place, rival, measure = table.places[row, column], table.rivals.get((row, column)), table.measures[column]
    texts = {"remark": place.remark, "mean": "", "sd": "", "is_best": False, "sign": "", "seeds": "", "published": ""}
    if place.mean is not None:
        texts |= {
            "remark": "",
            "mean": measure.text(place.mean),
            "sd": "" if place.sd is None else spread_in_words(place.sd, measure.like(place.sd, place.mean)),
            "is_best": table.is_best(row, column),
            "sign": rival.sign if rival is not None else "",
            "seeds": place.seeds_in_words(len(table.plan.seeds)),
        }
    if place.published is not None:
        gap = "" if place.mean is None else f" ({signed(place.mean - place.published.mean, measure)})"
        texts["published"] = f"{measure.text(place.published.mean)}{gap}"
    return texts


def _signs(table: Table) -> list[str]:
    found = [sign for sign in table.signs if not sign.startswith("[")]
    if any(place.published is not None for place in table.places.values()):
        found.append("◇: published (measured − published)")
    return found or ["bold: the best of a column"]


def _panels(table: Table, names: Sequence[str]) -> list[Figure]:
    with_number = [c for (_, c), place in table.places.items() if place.values or place.published]
    columns = [column for column in drawn_columns(table) if column in with_number]
    shape = {1: "wide", 2: "half"}.get(len(columns), "small")
    return [
        Figure(
            f"table-{at + 1}",
            column,
            "",
            finished(panel(table, column, names), height=ROW * len(table.rows) + _FRAME),
            shape,
            "table",
        )
        for at, column in enumerate(columns)
    ]


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
