"""The commands, as a shell starts them.

Nothing is worth saving while they load and when they are over: Ctrl-C then ends them at once, where Python would print
what it was doing. In between, the round loop handles it.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import NoReturn

from dfl_lightning.cli.ending import write_ending
from dfl_lightning.cli.loading import loading, own_process
from dfl_lightning.cli.streams import prepare_streams, refused_output


def fit() -> NoReturn:
    """`dfl-fit`: train."""
    _run("fit")


def validate() -> NoReturn:
    """`dfl-validate`: evaluate a checkpoint."""
    _run("validate")


def test() -> NoReturn:
    """`dfl-test`: evaluate a checkpoint."""
    _run("test")


test.__test__ = False  # type: ignore[attr-defined]  # no test of pytest's


def export() -> NoReturn:
    """`dfl-export`: write clients' models as safetensors."""
    start("export")
    from dfl_lightning.cli.exports.export_command import main

    leave("export", main())


def _run(command: str) -> NoReturn:
    start(command)
    from dfl_lightning.cli.help.screens import page_without_torch
    from dfl_lightning.cli.outcome import end

    page = page_without_torch(command, sys.argv[1:])
    if page is not None:
        leave(command, end(f"dfl-{command}", partial(_show, page)))
    with _loading():
        from dfl_lightning.cli.command import run
        from dfl_lightning.utils.thread_pool import keep_to_own_cores

    keep_to_own_cores()
    leave(command, run(command))


@contextmanager
def _loading() -> Iterator[None]:
    """Say so on a terminal while the libraries load, which takes seconds; the line goes when they are there."""
    watched = sys.stderr.isatty()
    if watched:
        print("loading torch and lightning ...", end="", file=sys.stderr, flush=True)
    try:
        with loading():
            yield
    finally:
        if watched:
            print("\r\x1b[2K", end="", file=sys.stderr, flush=True)


def _show(page: str) -> int:
    print(page, flush=True)  # here, not on leaving: the output may no longer be read
    return 0


def start(command: str) -> None:
    """Before anything is loaded: Ctrl-C ends the command at once, and what it prints can be written."""
    _end_at_once()
    own_process()
    refusal = prepare_streams()
    if refusal is not None:
        _refuse(command, refusal)


def leave(command: str, code: int) -> NoReturn:
    """End with what was printed written; here, where something can be said about it.

    Args:
        command: `fit` for example.
        code: its exit code.
    """
    refusal = refused_output()
    if refusal is not None:
        _refuse(command, refusal)
    sys.exit(code)


def _refuse(command: str, sentence: str) -> NoReturn:
    write_ending(2, sentence)
    print(f"dfl-{command}: {sentence}", file=sys.stderr)
    sys.exit(2)


def _end_at_once() -> None:
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else nohup or a first process has it ignored
        signal.signal(signal.SIGINT, signal.SIG_DFL)
