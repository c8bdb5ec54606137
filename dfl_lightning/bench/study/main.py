"""`dfl-study`, as a shell starts it."""

from __future__ import annotations

from typing import NoReturn

from dfl_lightning.cli.main import leave, start


def study() -> NoReturn:
    """`dfl-study`: the cells of a table, and the table."""
    start("study")
    from dfl_lightning.bench.study.command import main

    leave("study", main())
