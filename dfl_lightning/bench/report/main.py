"""Entry point of the command `dfl-report`."""

from __future__ import annotations

from typing import NoReturn

from dfl_lightning.cli.main import leave, start


def report() -> NoReturn:
    """Run the command `dfl-report` and end the process with its exit code."""
    start("report")
    from dfl_lightning.bench.report.command import main

    leave("report", main())
