"""The record of a failed command for other programs, which cannot rely on the wording of messages."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from dfl_lightning.utils.errors import DamagedCheckpoint, MissingData

ENDING = "DFL_ENDING"
"""Environment variable: the file that gets the record of a failure, one line of JSON."""

MISSING_DATA, DAMAGED_CHECKPOINT, OTHER = "missing data", "damaged checkpoint", "other"
"""Kinds of failures, by what a program could do about them."""


@dataclass(frozen=True)
class Ending:
    """A failure of a command.

    Attributes:
        code: the exit code.
        sentence: the message that the command printed.
        kind: `missing data`, `damaged checkpoint` or `other`.
        previous: for a damaged checkpoint, the path of the one before it, if that is whole.
    """

    code: int
    sentence: str
    kind: str = OTHER
    previous: str | None = None


def write_ending(code: int, sentence: str, error: BaseException | None = None) -> None:
    """Record a failure in the file that the environment names, if it names one.

    Args:
        code: the exit code.
        sentence: the message that is printed.
        error: the error that was raised; None if none was.
    """
    file = os.environ.get(ENDING)
    if not file:
        return
    kind, previous = OTHER, None
    if isinstance(error, MissingData):
        kind = MISSING_DATA
    elif isinstance(error, DamagedCheckpoint):
        kind, previous = DAMAGED_CHECKPOINT, None if error.previous is None else str(error.previous)
    text = json.dumps(asdict(Ending(code, sentence, kind, previous))) + "\n"
    with suppress(OSError):  # the message is on standard error; a reader finds no record
        Path(file).write_text(text, encoding="utf-8")


def read_ending(file: Path) -> Ending | None:
    """Read the record of a failure; return None without one, for example if the process was killed."""
    try:
        return Ending(**json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
