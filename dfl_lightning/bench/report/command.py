"""`dfl-report`: a page about runs."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path

from dfl_lightning.cli.outcome import OneSentenceParser, end
from dfl_lightning.utils.errors import UserError
from dfl_lightning.utils.memory import size
from dfl_lightning.utils.words import counted


def main(argv: Sequence[str] | None = None) -> int:
    """Run `dfl-report` and return its exit code: 0 done, 2 a user's mistake, 1 a bug of this library."""

    def work() -> int:
        parser = OneSentenceParser(prog="dfl-report", description="One self-contained page about one or several runs.")
        help = "a run, a study, a cell of one, or a folder of these; NAME=FOLDER names the method of its runs"
        parser.add_argument("runs", nargs="+", metavar="FOLDER", help=help)
        help = "the page (default: in the first folder, report.html if it is a run, otherwise runs.html)"
        parser.add_argument("--out", metavar="FILE", help=help)
        help = (
            "also each chart as a file (pdf, svg or png) and its numbers as CSV, in the folder figures next to the page"
        )
        parser.add_argument("--figures", metavar="FORMAT", help=help)
        parser.add_argument("--figures-out", metavar="DIR", help="another folder for the figures")
        help = "width of a figure on paper, such as 3.3in, 8.4cm or 240pt: with type of 8 points, and without a title"
        parser.add_argument("--width", help=help)
        parser.add_argument("--font", metavar="NAME", help="font family of the figures, which must be installed")
        help = "no page, but a table of all runs in a browser, which follows the folders; the page of those picked"
        parser.add_argument("--watch", action="store_true", help=help)
        parser.add_argument("--port", type=int, metavar="N", help="port of --watch (default 6010; 0: any free one)")
        help = "address of --watch (default 127.0.0.1, this machine alone); others can read the runs at any other one"
        parser.add_argument("--host", metavar="ADDRESS", help=help)
        help = "no page, but event files of the runs for TensorBoard, in a new folder"
        parser.add_argument("--to-tensorboard", metavar="DIR", help=help)
        help = "no page, but offline runs of Weights & Biases, in a new folder; `wandb sync` sends them"
        parser.add_argument("--to-wandb", metavar="DIR", help=help)
        parser.add_version()
        options = parser.parse_args(argv)
        if options.watch:
            _watch(options)
            return 0
        _refuse(options, ("port", "host"), "about --watch; give that too")
        if options.to_tensorboard is not None or options.to_wandb is not None:
            _copy_to_trackers(options)
            return 0
        from dfl_lightning.bench.report.writing import write_report  # imported here, because --watch needs none of it

        file = write_report(
            options.runs, options.out, options.figures, options.figures_out, options.width, options.font
        )
        print(f"{file} ({size(file.stat().st_size)})")
        return 0

    return end("dfl-report", work)


_OF_PAGES = ("out", "figures", "figures_out", "width", "font")


def _copy_to_trackers(options: argparse.Namespace) -> None:
    """Write the runs for TensorBoard and Weights & Biases."""
    from dfl_lightning.bench.report.trackers import tensorboard, wandb
    from dfl_lightning.bench.report.trackers.tracked import tracked_runs
    from dfl_lightning.bench.report.writing import collect_named

    _refuse(options, _OF_PAGES, "about a page, and --to-tensorboard and --to-wandb make none")
    runs = tracked_runs(collect_named(options.runs))
    for folder, write, sentence in (
        (options.to_tensorboard, tensorboard.write_events, "tensorboard --logdir {}"),
        (options.to_wandb, wandb.write_offline, "wandb sync {}/wandb/offline-run-*"),
    ):
        if folder is not None:
            path = write(runs, folder)
            print(f"{path} ({counted(len(runs), 'run')}): {sentence.format(shlex.quote(str(path)))}")


def _watch(options: argparse.Namespace) -> None:
    """Serve the table of runs until the process is stopped."""
    from dfl_lightning.bench.report.watch.hosts import LOOPBACK
    from dfl_lightning.bench.report.watch.serving import PORT, watch

    _refuse(options, (*_OF_PAGES, "to_tensorboard", "to_wandb"), "about files, and --watch writes none")
    for folder in options.runs:
        if "=" in folder and not Path(folder).exists():
            raise UserError(f"{folder}: --watch names methods itself; give the folder alone")
    watch(options.runs, options.host or LOOPBACK, PORT if options.port is None else options.port)


def _refuse(options: argparse.Namespace, names: Sequence[str], why: str) -> None:
    """Refuse options that would do nothing.

    Raises:
        UserError: one of them is given.
    """
    for name in names:
        if getattr(options, name) is not None:
            raise UserError(f"--{name.replace('_', '-')} is {why}")
