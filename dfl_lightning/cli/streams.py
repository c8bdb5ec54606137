"""The standard streams of a command: they exist, take every character, and it is said when output cannot be written.

Uses nothing but Python, so that it can be called before anything else is loaded.
"""

from __future__ import annotations

import codecs
import io
import os
import sys
import unicodedata

_HANDLER = "dfl_lightning.ascii"
_PLAIN = {"·": "-", "…": "...", "–": "-", "—": "-", "━": "-", "×": "x", "±": "+-", "→": "->", "≥": ">=", "≤": "<="}


def prepare_streams() -> str | None:
    """Make the three streams usable.

    A file of a run that got the number of a closed stream would get what libraries print, so closed ones become the
    null device. What an encoding lacks is printed as ASCII.

    Returns:
        What is wrong with standard output, as a sentence; None where it can be written.
    """
    closed = sys.stdout is None
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # gets the lowest free number: this one
    codecs.register_error(_HANDLER, _as_ascii)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_HANDLER)
    return "standard output is closed; send it to a file, or to /dev/null" if closed else None


def refused_output(error: BaseException | None = None) -> str | None:
    """Why standard output cannot be written, as a sentence; what is left of it is dropped then.

    Args:
        error: what has happened; an error of the system that names no file may have come from a line that was printed,
            of which nothing is left to flush where Python does not buffer. An empty line finds out.

    Returns:
        None where it can be written, or where its reader, `head` for example, has seen enough.
    """
    try:
        if isinstance(error, OSError) and error.filename is None:
            print()
        sys.stdout.flush()
    except BrokenPipeError:
        drop_output()
    except OSError as refusal:
        drop_output()
        return f"standard output cannot be written ({refusal.strerror}); send it elsewhere, or to /dev/null"
    return None


def drop_output() -> None:
    """Nothing more is written to standard output, also not when Python leaves, which would complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _as_ascii(error: UnicodeError) -> tuple[str, int]:
    """What stands for characters that a stream's encoding lacks.

    Examples:
        >>> codecs.register_error("doctest", _as_ascii)
        >>> "6 clients · 1×2 é €".encode("ascii", "doctest")
        b'6 clients - 1x2 e ?'
    """
    assert isinstance(error, UnicodeEncodeError)
    return "".join(map(_plain, error.object[error.start : error.end])), error.end


def _plain(character: str) -> str:
    without_accents = unicodedata.normalize("NFKD", character).encode("ascii", "ignore").decode()
    return _PLAIN.get(character) or without_accents or "?"
