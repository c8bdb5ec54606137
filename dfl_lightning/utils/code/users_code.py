"""Places in a user's own code, for messages about errors and exits."""

from __future__ import annotations

import argparse
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import jsonargparse
import lightning

from dfl_lightning.utils.code.users_files import is_installed, is_ours, is_users_file
from dfl_lightning.utils.errors import UserError, is_out_of_memory

_PARSERS = tuple(Path(str(module.__file__)).parent for module in (jsonargparse, lightning))
_ARGPARSE = Path(argparse.__file__)


def account_of(error: BaseException) -> str:
    """Describe an error, with its place if it is in a user's code."""
    if isinstance(error, UserError):
        return str(error)
    return where_in_users_code(error) or _about(error)


def where_in_users_code(error: BaseException) -> str | None:
    """Describe an error and its innermost line in a user's code; None if the error did not pass through such code."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if is_users_file(Path(frame.filename)):
            return f"{_place(frame)}: {_about(error)}"
    return None


def place_in_users_code(frame: FrameType) -> str:
    """Return the place in a user's code that a frame executes or was called from; empty if it is in our code."""
    for caller in traceback.StackSummary.extract(traceback.walk_stack(frame), lookup_lines=False):
        file = Path(caller.filename)
        if is_ours(file):
            break
        if is_users_file(file):
            return _place(caller)
    return ""


def is_users(error: BaseException) -> bool:
    """Return True if a user can repair the cause of an error (a full disk, too), which is then not a bug of ours."""
    return isinstance(error, (UserError, OSError)) or is_out_of_memory(error) or where_in_users_code(error) is not None


def exit_in_users_code(left: SystemExit) -> str | None:
    """Describe the place where a user's code exits, and the remedy; None if the parser exits (`--help`)."""
    frames = traceback.extract_tb(left.__traceback__)
    others = [frame for frame in frames if not _may_exit(Path(frame.filename))]
    if not others:
        return None
    remedy = "raise an exception that says what is wrong, or set trainer.should_stop = True to end after the round"
    code = "" if left.code is None else repr(left.code)
    return f"{_place(others[-1])}: sys.exit({code}) would end the command without a message; {remedy}"


@contextmanager
def exits_refused() -> Iterator[None]:
    """Raise `UserError` instead of `SystemExit` if a user's code exits inside the block.

    Raises:
        UserError: a user's code exits.
    """
    try:
        yield
    except SystemExit as left:
        by_user = exit_in_users_code(left)
        if by_user is None:
            raise
        raise UserError(by_user) from left


def _may_exit(file: Path) -> bool:
    """Return True if code in a file may exit: that of Python, of the command-line parsers, or ours."""
    standard = is_installed(file) and "site-packages" not in file.parts and "dist-packages" not in file.parts
    return standard or file == _ARGPARSE or is_ours(file) or any(file.is_relative_to(room) for room in _PARSERS)


def _place(frame: traceback.FrameSummary) -> str:
    """Name the file, the line and the function of a frame."""
    file, working_folder = Path(frame.filename), Path.cwd()
    shown = file.relative_to(working_folder) if file.is_relative_to(working_folder) else file
    return f"{shown}, line {frame.lineno}, in {frame.name}"


def _about(error: BaseException) -> str:
    """Return the type and the message of an error on one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
