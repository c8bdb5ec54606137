"""`dfl-report`, as a shell starts it."""

from __future__ import annotations

from typing import NoReturn

from dfl_lightning.cli.main import leave, start


def report() -> NoReturn:
    """`dfl-report`: a page about runs."""
    start("report")
    from dfl_lightning.bench.report.command import main

    leave("report", main())
