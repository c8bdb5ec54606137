"""The parser and the exit of commands that do not train: one-sentence messages, and exit codes."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from dfl_lightning.cli.help.screens import version_line
from dfl_lightning.cli.streams import drop_output, refused_output
from dfl_lightning.utils.errors import UserError, nearest, one_line
from dfl_lightning.utils.wrapping import for_terminal


class OneSentenceParser(argparse.ArgumentParser):
    """Parser that reports a mistake in one sentence, and can have the option `--version`."""

    def error(self, message: str) -> NoReturn:
        """Raise the error about wrong arguments.

        Raises:
            UserError: always.
        """
        raise UserError(f"{message}; {self.prog} --help shows what it takes")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Raise for a word that is none of an argument's choices, and suggest the nearest one."""
        if action.choices is not None and value not in action.choices:
            choices = [str(choice) for choice in action.choices]
            words = f"invalid choice: '{value}'{nearest(str(value), choices)} (choose from {', '.join(choices)})"
            raise argparse.ArgumentError(action, words)

    def add_version(self) -> None:
        """Add the option `--version`."""
        self.add_argument("--version", action="version", version=version_line())


def end(command: str, work: Callable[[], int]) -> int:
    """Run a command, report its error, and return its exit code.

    The code is that of `work`, 2 after a user's mistake, 1 after a bug, or 128 + the number of a signal.

    Args:
        command: name of the command, for the message.
        work: the work of the command; returns its exit code.
    """
    try:
        return work()
    except UserError as error:
        if os.environ.get("DFL_DEBUG", "") not in ("", "0"):
            raise
        return say(command, str(error), 2)
    except KeyboardInterrupt:
        return say(command, "stopped at once", 130)
    except BrokenPipeError:
        drop_output()
        return 128 + signal.SIGPIPE
    except OSError as error:
        return say(command, refused_output(error) or f"{error.filename or 'a file'}: {error.strerror}", 2)
    except Exception as error:
        if os.environ.get("DFL_DEBUG", "") not in ("", "0"):
            raise
        about = f"{type(error).__name__}: {' '.join(str(error).split())}"
        return say(command, f"a bug of dfl_lightning: {about} (DFL_DEBUG=1 shows where)", 1)


def say(command: str, sentence: str, code: int) -> int:
    """Print one line on standard error, and return the exit code.

    Args:
        command: name of the command, such as `dfl-study`.
        sentence: the message; line breaks become spaces.
        code: the exit code.
    """
    print(for_terminal(f"{command}: {' '.join(one_line(sentence).split())}", sys.stderr), file=sys.stderr)
    return code
