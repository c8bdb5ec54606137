"""Errors that do not end a run: those of pages and lines that only show numbers, which are also in files."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from dfl_lightning.utils.code.users_code import account_of
from dfl_lightning.utils.errors import one_line


def warn(sentence: str) -> None:
    """Print a warning on standard error, and ignore a stream that cannot be written.

    Python's `warnings` are not used, since a filter may turn them into errors, which would end the run.
    """
    with suppress(OSError, ValueError):  # a full disk or a closed stream
        print(f"warning: {one_line(sentence)}", file=sys.stderr, flush=True)


@contextmanager
def only_warns(
    what: str, remedy: str, failed: Callable[[], None] = lambda: None, but: tuple[type[Exception], ...] = ()
) -> Iterator[None]:
    """Turn any error of the block, which only shows a run, into a warning.

    Ctrl-C, signals and `sys.exit` are not caught.

    Args:
        what: the part that may fail, as the subject of the warning.
        remedy: what the user can do, and what happens to the run.
        failed: called after the warning.
        but: errors that are not caught.

    Examples:
        >>> with only_warns("the page", "dfl-report RUN makes it"):
        ...     print(1 / 1)
        1.0
    """
    try:
        yield
    except but:
        raise
    except Exception as error:
        warn(f"{what} failed ({account_of(error)}); {remedy}")
        failed()
