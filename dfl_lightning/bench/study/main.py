"""The entry point of the command `dfl-study`."""

from __future__ import annotations

from typing import NoReturn

from dfl_lightning.cli.main import leave, start


def study() -> NoReturn:
    """Run `dfl-study`, and end with its exit code."""
    start("study")
    from dfl_lightning.bench.study.command import main

    leave("study", main())
