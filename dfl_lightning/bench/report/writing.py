"""`dfl-report`: one page about one or several runs."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from dfl_lightning.bench.report.methods import Method, find_methods
from dfl_lightning.runs.reading import Run
from dfl_lightning.runs.run_folder import PAGE
from dfl_lightning.utils.errors import UserError
from dfl_lightning.utils.storage.files import write_atomically

if TYPE_CHECKING:
    from dfl_lightning.bench.report.page.opening import Opening
    from dfl_lightning.bench.report.page.paper import Paper

FIGURES = "figures"
"""The folder of figures beside the page."""


def write_report(
    runs: Sequence[str | os.PathLike[str]],
    to: str | os.PathLike[str] | None = None,
    figures: str | None = None,
    figures_to: str | os.PathLike[str] | None = None,
    width: str | None = None,
    font: str | None = None,
) -> Path:
    """Make the page, and where asked its figures as files of their own.

    Args:
        runs: run folders; `NAME=RUN` gives the run's method a name.
        to: the page's file; default `report.html` in the first run's folder.
        figures: `pdf`, `svg` or `png`: also write each chart in this format, and its rows as CSV.
        figures_to: their folder; default `figures` beside the page.
        width: of a figure on paper, for example `3.3in`, `8.4cm` or `240pt`: its type has 8 points then, and the title
            is left to the paper; default: as large as on the page, with the title.
        font: of the figures, a family that is installed; default: the page's.

    Returns:
        The page's file.

    Raises:
        UserError: no such run, format, width or font, Altair is not installed, or a file cannot be written.
    """
    if not runs:
        raise UserError("no run is named; give its folder: dfl-report RUN")
    named = [_named(os.fspath(word)) for word in runs]
    file = Path(to) if to is not None else Path(named[0][1]) / PAGE
    if figures is None:
        for option, value in (("figures-to", figures_to), ("width", width), ("font", font)):
            if value is not None:
                raise UserError(f"--{option} is about figures; give their format too, for example --figures pdf")
        return write_page(named, file)
    check_report()
    from dfl_lightning.bench.report.page.paper import read_paper

    folder = file.parent / FIGURES if figures_to is None else Path(figures_to)
    return write_page(named, file, (folder, read_paper(figures, width, font)))


def write_page(
    named: Sequence[tuple[str, str | os.PathLike[str]]],
    file: Path,
    pictures: tuple[Path, Paper] | None = None,
    columns: Sequence[str] | None = None,
    study: str = "",
    command: str = "",
    opening: Callable[[Sequence[Method]], Opening] | None = None,
) -> Path:
    """Make the page of runs with names.

    Args:
        named: a name, empty where there is none, and the run folder, of each run.
        file: the page's.
        pictures: a folder for the charts as files of their own, and how these look.
        columns: of a study, for each run.
        study: its title.
        command: that trains it.
        opening: makes the first section of its page.

    Returns:
        The page's file.

    Raises:
        UserError: no such run, Altair is not installed, or a file cannot be written.
    """
    check_report()
    methods = find_methods([Run(folder) for _, folder in named], [name for name, _ in named], columns)
    return write_methods(methods, file, pictures, study, command, opening)


def write_methods(
    methods: Sequence[Method],
    file: Path,
    pictures: tuple[Path, Paper] | None = None,
    study: str = "",
    command: str = "",
    opening: Callable[[Sequence[Method]], Opening] | None = None,
    following: float | None = None,
) -> Path:
    """Make the page of methods; arguments as of `write_page`.

    Args:
        methods: to be compared.
        file: the page's.
        pictures: a folder for the charts as files of their own, and how these look.
        study: its title.
        command: that trains it.
        opening: makes the first section of its page.
        following: while the run lasts, the seconds until the next page: a browser loads it then.

    Returns:
        The page's file.

    Raises:
        UserError: a file cannot be written.
    """
    from dfl_lightning.bench.report.charts.base import unchecked
    from dfl_lightning.bench.report.comparable import in_order
    from dfl_lightning.bench.report.page.assemble import page
    from dfl_lightning.bench.report.page.pictures import linked_figures, write_pictures
    from dfl_lightning.bench.report.page.sections import figures

    methods = in_order(methods)
    with unchecked(), _without_collecting():
        first = None if opening is None else opening(methods)
        drawn = [*(first.figures if first else []), *figures(methods)]
        text = page(methods, drawn, study, command, first, following)
        try:
            write_atomically(file, lambda open_file: open_file.write(text.encode()))
        except OSError as error:
            raise UserError(f"{file}: cannot be written ({error.strerror}); choose another file with --to") from error
        if pictures is not None:
            write_pictures([*drawn, *linked_figures(methods)], *pictures)
    return file


@contextmanager
def _without_collecting() -> Iterator[None]:
    """Within it Python looks for no cycles of references: a page is a million small objects, nearly all of them needed
    until its end, and looking through them again and again takes a fifth of the time.
    """
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


def check_report() -> None:
    """Refuse a report that cannot be made.

    Raises:
        UserError: Altair or vl-convert is not installed.
    """
    for package in ("altair", "vl_convert"):
        if find_spec(package) is None:
            raise UserError("a report needs Altair and vl-convert: pip install 'dfl-lightning[report]'")


def _named(word: str) -> tuple[str, str]:
    """A name, or nothing, and the run folder.

    Examples:
        >>> _named("AFIND+ = 0.2=runs/afind/1")
        ('AFIND+ = 0.2', 'runs/afind/1')
    """
    if "=" in word and not Path(word).exists():
        name, _, folder = word.rpartition("=")
        return name.strip(), folder
    return "", word
