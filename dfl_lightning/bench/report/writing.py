"""Writing of reports: one page about one or several runs, and picture files of its charts."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from dfl_lightning.bench.report.collection.finding import collect_runs, is_run
from dfl_lightning.bench.report.methods import Method, find_methods
from dfl_lightning.runs.reading import PAGE, Run
from dfl_lightning.utils.errors import UserError
from dfl_lightning.utils.garbage_collection import without_garbage_collection
from dfl_lightning.utils.storage.files import write_atomically

if TYPE_CHECKING:
    from dfl_lightning.bench.report.page.contents.repeating import StudyFile
    from dfl_lightning.bench.report.page.opening import Opening
    from dfl_lightning.bench.report.page.paper import Paper
    from dfl_lightning.bench.report.page.sections import Figure

FIGURES = "figures"
"""Name of the folder of figures next to the page."""

PAGE_OF_FOLDER = "runs.html"
"""Name of the page of a folder of runs, next to which a study may have a page of its own."""


def write_report(
    runs: Sequence[str | os.PathLike[str]],
    to: str | os.PathLike[str] | None = None,
    figures: str | None = None,
    figures_out: str | os.PathLike[str] | None = None,
    width: str | None = None,
    font: str | None = None,
) -> Path:
    """Write a page about runs, and optionally each of its charts as a picture file.

    Args:
        runs: run folders, studies, cells of a study, and folders of these; `NAME=RUN` gives the run's method a name.
        to: file of the page; default: in the first folder, `report.html` if it is a run, otherwise `runs.html`.
        figures: `pdf`, `svg` or `png`: also write each chart in this format, and its rows as CSV.
        figures_out: folder of these files; default: `figures` next to the page.
        width: width of a figure on paper, for example `3.3in`, `8.4cm` or `240pt`: its type then has 8 points, and it
            has no title, which a paper sets itself; default: as large as on the page, with the title.
        font: font family of the figures, which must be installed; default: the page's.

    Returns:
        The file of the page.

    Raises:
        UserError: a folder, format, width or font does not exist, a folder holds no run, Altair is not installed, or a
            file cannot be written.
    """
    if not runs:
        raise UserError("no run is named; give its folder: dfl-report RUN")
    first = Path(_named(os.fspath(runs[0]))[1])
    file = Path(to) if to is not None else first / (PAGE if is_run(first) else PAGE_OF_FOLDER)
    if figures is None:
        for option, value in (("figures-out", figures_out), ("width", width), ("font", font)):
            if value is not None:
                raise UserError(f"--{option} is about figures; give their format too, for example --figures pdf")
        return write_page(collect_named(runs), file)
    check_report()
    from dfl_lightning.bench.report.page.paper import read_paper

    folder = file.parent / FIGURES if figures_out is None else Path(figures_out)
    return write_page(collect_named(runs), file, (folder, read_paper(figures, width, font)))


def collect_named(words: Sequence[str | os.PathLike[str]]) -> list[tuple[str, Path]]:
    """Return the name, which may be empty, and the folder of each run that is named or lies in a folder.

    Args:
        words: run folders, studies, cells of a study, and folders of these; `NAME=RUN` gives the run's method a name.

    Raises:
        UserError: a folder does not exist, or holds no run.
    """
    return collect_runs([_named(os.fspath(word)) for word in words])


def write_page(
    named: Sequence[tuple[str, str | os.PathLike[str]]],
    file: Path,
    pictures: tuple[Path, Paper] | None = None,
    columns: Sequence[str] | None = None,
    study: str = "",
    command: str = "",
    opening: Callable[[Sequence[Method]], Opening] | None = None,
    study_file: StudyFile | None = None,
) -> Path:
    """Write a page about runs, grouped into methods.

    Args:
        named: for each run the name of its method, which may be empty, and the run folder.
        file: file of the page.
        pictures: folder and look of picture files of the charts; default: no such files.
        columns: column of a study for each run.
        study: title of the study.
        command: command that trains the study.
        opening: function that makes the first section of the study's page.
        study_file: file of the study, to run it again.

    Returns:
        The file of the page.

    Raises:
        UserError: a run does not exist, Altair is not installed, or a file cannot be written.
    """
    check_report()
    methods = find_methods([Run(folder) for _, folder in named], [name for name, _ in named], columns)
    return write_methods(methods, file, pictures, study, command, opening, study_file=study_file)


def write_methods(
    methods: Sequence[Method],
    file: Path,
    pictures: tuple[Path, Paper] | None = None,
    study: str = "",
    command: str = "",
    opening: Callable[[Sequence[Method]], Opening] | None = None,
    following: float | None = None,
    study_file: StudyFile | None = None,
) -> Path:
    """Write a page that compares methods.

    Args:
        methods: in any order.
        file: file of the page.
        pictures: folder and look of picture files of the charts; default: no such files.
        study: title of the study.
        command: command that trains the study.
        opening: function that makes the first section of the study's page.
        following: seconds until the next page of a run that is still training, after which a browser reloads the page.
        study_file: file of the study, to run it again.

    Returns:
        The file of the page.

    Raises:
        UserError: a file cannot be written.
    """
    from dfl_lightning.bench.report.charts.base import unchecked
    from dfl_lightning.bench.report.page.pictures import linked_figures, write_pictures

    methods, drawn, text = _drawn(methods, study, command, opening, following, study_file)
    try:
        write_atomically(file, lambda open_file: open_file.write(text.encode()))
    except OSError as error:
        raise UserError(f"{file}: cannot be written ({error.strerror}); choose another file with --out") from error
    if pictures is not None:
        with unchecked(), without_garbage_collection():
            write_pictures([*drawn, *linked_figures(methods)], *pictures)
    return file


def page_text(methods: Sequence[Method], following: float | None = None) -> str:
    """Return a page that compares methods, as HTML.

    Args:
        methods: in any order.
        following: seconds until the next page of a run that is still training, after which a browser reloads the page.
    """
    return _drawn(methods, "", "", None, following, None)[2]


def _drawn(
    methods: Sequence[Method],
    study: str,
    command: str,
    opening: Callable[[Sequence[Method]], Opening] | None,
    following: float | None,
    study_file: StudyFile | None,
) -> tuple[list[Method], list[Figure], str]:
    """Return the methods in the order of the page, the page's charts, and its text; see `write_methods`."""
    from dfl_lightning.bench.report.charts.base import unchecked
    from dfl_lightning.bench.report.comparable import in_order
    from dfl_lightning.bench.report.page.assemble import page
    from dfl_lightning.bench.report.page.sections import figures

    with unchecked(), without_garbage_collection():
        ordered = in_order(methods)
        first = None if opening is None else opening(ordered)
        drawn = [*(first.figures if first else []), *figures(ordered)]
        return ordered, drawn, page(ordered, drawn, study, command, first, following, study_file)


def check_report() -> None:
    """Raise if the libraries that draw charts and fill templates are not installed.

    Raises:
        UserError: Altair, Jinja2 or vl-convert is not installed.
    """
    for package in ("altair", "jinja2", "vl_convert"):
        if find_spec(package) is None:
            raise UserError("a report needs Altair, Jinja2 and vl-convert: pip install 'dfl-lightning[report]'")


def _named(word: str) -> tuple[str, str]:
    """Split an argument `NAME=RUN` into the name, empty if there is none, and the run folder.

    Examples:
        >>> _named("AFIND+ = 0.2=runs/afind/1")
        ('AFIND+ = 0.2', 'runs/afind/1')
    """
    if "=" in word and not Path(word).exists():
        name, _, folder = word.rpartition("=")
        return name.strip(), folder
    return "", word
