"""The standard streams of a command: closed ones, characters that they lack, and output that cannot be written.

It imports only the standard library, so that it can be called before anything else is loaded.
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
    """Prepare the three standard streams for output.

    Closed ones are connected to the null device: otherwise a file of the run would get the number of the stream, and
    with it what libraries print. Characters that an encoding lacks are printed as ASCII.

    Returns:
        The message about a closed standard output; None if it is open.
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
    """Flush standard output, and drop the rest of it if it cannot be written.

    Args:
        error: the error that ended the command. An `OSError` without a file name may be that of a printed line. If
            Python does not buffer, flushing does not repeat it, so an empty line is printed to find out.

    Returns:
        The message about the failure; None if the output can be written, or if its reader, such as `head`, has ended.
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
    """Connect standard output to the null device, so that Python can flush it at the exit without an error."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _as_ascii(error: UnicodeError) -> tuple[str, int]:
    """Replace characters that a stream's encoding lacks by similar ones of ASCII.

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
