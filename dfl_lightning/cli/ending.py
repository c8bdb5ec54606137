"""How a command ended, as a record that another program reads: sentences are for people, and may be reworded."""

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
"""What has failed: what a program could do about it."""


@dataclass(frozen=True)
class Ending:
    """A failure of a command.

    Attributes:
        code: the exit code.
        sentence: what the command has told the user.
        kind: `missing data`, `damaged checkpoint` or `other`.
        previous: with a damaged checkpoint: the one before it, if that is whole.
    """

    code: int
    sentence: str
    kind: str = OTHER
    previous: str | None = None


def write_ending(code: int, sentence: str, error: BaseException | None = None) -> None:
    """Record a failure in the file that the environment names, if it names one.

    Args:
        code: the exit code.
        sentence: what the user is told.
        error: what was raised; None: nothing was.
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
    with suppress(OSError):  # what failed is said on standard error all the same; whoever reads the file finds none
        Path(file).write_text(text, encoding="utf-8")


def read_ending(file: Path) -> Ending | None:
    """The record of a failure; None where there is none: the process was killed, or did not come so far."""
    try:
        return Ending(**json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
