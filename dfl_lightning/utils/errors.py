"""Errors for bad input and missing resources, and the wording of messages."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

UNREACHABLE = "another process of the run has ended or cannot be reached; its own message, if there is one, says why"

SHORTAGES = ("CUDA error: out of memory", "ALLOC_FAILED", "can't allocate memory", "bad_alloc")
"""Words in messages about a lack of memory, by CUDA, its libraries and the CPU's allocators, without an own type."""

FAILURES = ("CUDA error", "CUDA driver error", "cuDNN error")
"""Beginnings of messages about errors of a GPU, its driver or cuDNN."""


class UserError(Exception):
    """An error about bad input; the sentence names the input and the remedy.

    The commands print the sentence and exit with code 2; in Python it is an ordinary exception.
    """

    def __init__(self, sentence: str) -> None:
        super().__init__(one_line(sentence))


class MissingData(UserError):
    """Files of a data set are missing or damaged."""


class DamagedCheckpoint(UserError):
    """A checkpoint cannot be used.

    Args:
        sentence: the reason.
        previous: the checkpoint before it, if that one is undamaged.
    """

    def __init__(self, sentence: str, previous: Path | None = None) -> None:
        super().__init__(sentence)
        self.previous = previous


def one_line(text: str) -> str:
    r"""Return a text on one line without control characters, which a file or a name may have brought into it.

    Examples:
        >>> one_line("a" + chr(10) + "b" + chr(27))
        'a b\\x1b'
    """
    return "".join(" " if c.isspace() else c if c.isprintable() else ascii(c)[1:-1] for c in text)


def is_out_of_memory(error: BaseException) -> bool:
    """Return True if an error means a lack of memory, which is no fault of the code that asked for it.

    Examples:
        >>> is_out_of_memory(RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"))
        True
        >>> is_out_of_memory(UserError("out of memory"))
        False
    """
    from torch import OutOfMemoryError  # here: --help must not wait for torch

    if isinstance(error, (OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in SHORTAGES)


def is_gpu_failure(error: BaseException) -> bool:
    """Return True if a GPU has failed, possibly in a much earlier operation; usually it stays unusable.

    Examples:
        >>> is_gpu_failure(RuntimeError("CUDA error: an illegal memory access was encountered"))
        True
        >>> is_gpu_failure(RuntimeError("CUDA error: out of memory"))
        False
    """
    return isinstance(error, RuntimeError) and str(error).startswith(FAILURES) and not is_out_of_memory(error)


@contextmanager
def reported_as(ours: Callable[[Exception], Exception], kinds: type[Exception] = Exception) -> Iterator[None]:
    """Replace an error of a user's network, loss or metric by one of ours.

    Some errors pass unchanged: a `UserError`, a lack of memory, and an error of the type that `ours` makes.

    Args:
        ours: function that makes our error from the one that was raised.
        kinds: type of errors that are replaced; others pass unchanged.

    Examples:
        >>> with reported_as(lambda error: UserError(f"model.loss fails ({reason(error)})")):
        ...     raise ValueError("no labels")
        Traceback (most recent call last):
        ...
        dfl_lightning.utils.errors.UserError: model.loss fails (no labels)
    """
    try:
        yield
    except kinds as error:
        if isinstance(error, UserError) or is_out_of_memory(error):
            raise
        replacement = ours(error)
        if isinstance(error, type(replacement)):
            raise
        raise replacement from error


def reason(error: BaseException) -> str:
    """Return the message of another library's error for a sentence: its first line, cut in the middle if it is long.

    Examples:
        >>> reason(ValueError("no such thing." + chr(10) + "a long story"))
        'no such thing'
        >>> reason(KeyError())
        'KeyError'
    """
    lines = str(error).strip().splitlines()
    line = lines[0].strip().rstrip(".") if lines else type(error).__name__
    return shortened(line, 200)


def shortened(text: str, most: int) -> str:
    """Cut a text in the middle to at most `most` characters, since messages end with the remedy.

    Args:
        text: the text.
        most: largest number of characters, 3 or more.

    Examples:
        >>> shortened("0123456789", 7)
        '012…789'
    """
    half = (most - 1) // 2
    return text if len(text) <= most else f"{text[:half]}…{text[-half:]}"


def nearest(word: str, choices: Iterable[str]) -> str:
    """Suggest a word for a misspelt one, in the form `"; did you mean 'X'?"`; empty if no choice is similar.

    Args:
        word: as the user wrote it.
        choices: the words that are allowed.

    Examples:
        >>> nearest("Gosip", ["Gossip", "AFIND"])
        "; did you mean 'Gossip'?"
        >>> nearest("zzz", ["Gossip"])
        ''
    """
    # If two choices differ in case only, such as a class and its module, the first one, the class, is suggested.
    by_lower = {choice.lower(): choice for choice in reversed(list(choices))}
    close = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=0.6)
    return f"; did you mean '{by_lower[close[0]]}'?" if close else ""
