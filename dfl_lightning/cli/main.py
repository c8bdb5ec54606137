"""The entry points of the commands.

While the libraries load and after the work is done, there is nothing to save: Ctrl-C then ends a command at once,
without a traceback. In between, the round loop handles it.
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
    """Run `dfl-fit`: train clients."""
    _run("fit")


def validate() -> NoReturn:
    """Run `dfl-validate`: evaluate a checkpoint on validation data."""
    _run("validate")


def test() -> NoReturn:
    """Run `dfl-test`: evaluate a checkpoint on test data."""
    _run("test")


test.__test__ = False  # type: ignore[attr-defined]  # so that pytest does not collect it


def export() -> NoReturn:
    """Run `dfl-export`: write clients' models as safetensors, or pack a run."""
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
    """Show a line in a terminal while the libraries load, which takes seconds, and remove it afterwards."""
    is_terminal = sys.stderr.isatty()
    if is_terminal:
        print("loading torch and lightning ...", end="", file=sys.stderr, flush=True)
    try:
        with loading():
            yield
    finally:
        if is_terminal:
            print("\r\x1b[2K", end="", file=sys.stderr, flush=True)


def _show(page: str) -> int:
    print(page, flush=True)  # flushed here, where an output that is no longer read can be handled
    return 0


def start(command: str) -> None:
    """Prepare a command before any library is loaded: let Ctrl-C end it at once, and check the output streams."""
    _end_at_once()
    own_process()
    refusal = prepare_streams()
    if refusal is not None:
        _refuse(command, refusal)


def leave(command: str, code: int) -> NoReturn:
    """Flush the output and exit; a failure of the output is reported here, since Python could not report it later.

    Args:
        command: name of the command without `dfl-`, such as `fit`.
        code: the exit code.
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
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else nohup or a parent process has it ignored
        signal.signal(signal.SIGINT, signal.SIG_DFL)
