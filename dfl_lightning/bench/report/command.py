"""`dfl-report`: a page about runs."""

from __future__ import annotations

from collections.abc import Sequence

from dfl_lightning.bench.report.writing import write_report
from dfl_lightning.cli.outcome import OneSentenceParser, end
from dfl_lightning.utils.memory import size


def main(argv: Sequence[str] | None = None) -> int:
    """Run `dfl-report` and return its exit code: 0 done, 2 a user's mistake, 1 a bug of this library."""

    def work() -> int:
        parser = OneSentenceParser(prog="dfl-report", description="One self-contained page about one or several runs.")
        help = "a run, a study, a cell of one, or a folder of these; NAME=FOLDER names the method of its runs"
        parser.add_argument("runs", nargs="+", metavar="FOLDER", help=help)
        help = "the page (default: in the first folder, report.html if it is a run, otherwise runs.html)"
        parser.add_argument("--to", metavar="FILE", help=help)
        help = (
            "also each chart as a file (pdf, svg or png) and its numbers as CSV, in the folder figures next to the page"
        )
        parser.add_argument("--figures", metavar="FORMAT", help=help)
        parser.add_argument("--figures-to", metavar="DIR", help="another folder for the figures")
        help = "width of a figure on paper, such as 3.3in, 8.4cm or 240pt: with type of 8 points, and without a title"
        parser.add_argument("--width", help=help)
        parser.add_argument("--font", metavar="NAME", help="font family of the figures, which must be installed")
        parser.add_version()
        options = parser.parse_args(argv)
        file = write_report(options.runs, options.to, options.figures, options.figures_to, options.width, options.font)
        print(f"{file} ({size(file.stat().st_size)})")
        return 0

    return end("dfl-report", work)
