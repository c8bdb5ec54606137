"""`dfl-report`: one page about one or several runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from dfl_lightning.report.methods import Method, find_methods
from dfl_lightning.report.reading import Run
from dfl_lightning.utils.errors import UserError
from dfl_lightning.utils.files import write_atomically

if TYPE_CHECKING:
    from dfl_lightning.report.page.opening import Opening

PAGE = "report.html"
"""The page's file in a run folder."""


def write_report(
    runs: Sequence[str | os.PathLike[str]],
    to: str | os.PathLike[str] | None = None,
    pictures: str | os.PathLike[str] | None = None,
) -> Path:
    """Make the page.

    Args:
        runs: run folders; `NAME=RUN` gives the run's method a name.
        to: the page's file; default `report.html` in the first run's folder.
        pictures: a folder for a PNG and a CSV of each chart.

    Returns:
        The page's file.

    Raises:
        UserError: no such run, Altair is not installed, or a file cannot be written.
    """
    if not runs:
        raise UserError("no run is named; give its folder: dfl-report RUN")
    named = [_named(os.fspath(word)) for word in runs]
    file = Path(to) if to is not None else Path(named[0][1]) / PAGE
    return write_page(named, file, None if pictures is None else Path(pictures))


def write_page(
    named: Sequence[tuple[str, str | os.PathLike[str]]],
    file: Path,
    pictures: Path | None = None,
    columns: Sequence[str] | None = None,
    study: str = "",
    command: str = "",
    opening: Callable[[Sequence[Method]], Opening] | None = None,
) -> Path:
    """Make the page of runs with names.

    Args:
        named: a name, empty where there is none, and the run folder, of each run.
        file: the page's.
        pictures: a folder for a PNG and a CSV of each chart.
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
    from dfl_lightning.report.charts.base import unchecked
    from dfl_lightning.report.page.assemble import page
    from dfl_lightning.report.page.pictures import linked_figures, write_pictures
    from dfl_lightning.report.page.sections import figures

    methods = find_methods([Run(folder) for _, folder in named], [name for name, _ in named], columns)
    with unchecked():
        first = None if opening is None else opening(methods)
        drawn = [*(first.figures if first else []), *figures(methods)]
        text = page(methods, drawn, study, command, first)
        try:
            write_atomically(file, lambda open_file: open_file.write(text.encode()))
        except OSError as error:
            raise UserError(f"{file}: cannot be written ({error.strerror}); choose another file with --to") from error
        if pictures is not None:
            write_pictures([*drawn, *linked_figures(methods)], pictures)
    return file


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
