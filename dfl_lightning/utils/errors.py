"""A user's mistake, and its kinds that a program can do something about."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

UNREACHABLE = "another process of the run has ended or cannot be reached; its own message, if there is one, says why"

SHORTAGES = ("CUDA error: out of memory", "ALLOC_FAILED", "can't allocate memory", "bad_alloc")
"""What CUDA, its libraries and the CPU's allocators say of memory in errors that have no type of their own."""

FAILURES = ("CUDA error", "CUDA driver error", "cuDNN error")
"""How errors begin that a GPU, its driver or cuDNN reports."""


class UserError(Exception):
    """Bad input, reported in one sentence: what, where, and the remedy.

    The commands print the sentence and leave with exit code 2; from Python it is an ordinary exception.
    """

    def __init__(self, sentence: str) -> None:
        super().__init__(one_line(sentence))


class MissingData(UserError):
    """Files of a data set that are not there, or are damaged."""


class DamagedCheckpoint(UserError):
    """A checkpoint that cannot be used.

    Args:
        sentence: what is wrong with it.
        previous: the checkpoint before it, if that is whole.
    """

    def __init__(self, sentence: str, previous: Path | None = None) -> None:
        super().__init__(sentence)
        self.previous = previous


def one_line(text: str) -> str:
    r"""A text on one line that steers no terminal, whatever a file or a name brought into it.

    Examples:
        >>> one_line("a" + chr(10) + "b" + chr(27))
        'a b\\x1b'
    """
    return "".join(" " if c.isspace() else c if c.isprintable() else ascii(c)[1:-1] for c in text)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory was not enough: this says nothing about the network, say, that asked for it.

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
    """Whether a GPU has failed, possibly in a much earlier operation; usually it stays unusable.

    Examples:
        >>> is_gpu_failure(RuntimeError("CUDA error: an illegal memory access was encountered"))
        True
        >>> is_gpu_failure(RuntimeError("CUDA error: out of memory"))
        False
    """
    return isinstance(error, RuntimeError) and str(error).startswith(FAILURES) and not is_out_of_memory(error)


@contextmanager
def reported_as(ours: Callable[[Exception], Exception], kinds: type[Exception] = Exception) -> Iterator[None]:
    """Report what a user's network, loss or metric raises as an error of ours.

    Two kinds pass as they are: an error of ours, and a lack of memory, which says nothing about who asked for it.

    Args:
        ours: the error to raise, from what was raised; no `UserError` is made another one, nor what `ours` makes.
        kinds: what is reported; anything else passes.

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
        told = ours(error)
        if isinstance(error, type(told)):
            raise
        raise told from error


def reason(error: BaseException) -> str:
    """What another library's error says, short enough for one sentence: its first line, a long one without its middle.

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
    """A text of at most `most` characters: the middle is left out, since messages end with the remedy.

    Args:
        text: any.
        most: characters, 3 or more.

    Examples:
        >>> shortened("0123456789", 7)
        '012…789'
    """
    half = (most - 1) // 2
    return text if len(text) <= most else f"{text[:half]}…{text[-half:]}"


def nearest(word: str, choices: Iterable[str]) -> str:
    """A hint for a misspelt word: `"; did you mean 'X'?"`, or nothing when no choice is similar.

    Args:
        word: as the user wrote it.
        choices: the words that are allowed.

    Examples:
        >>> nearest("Gosip", ["Gossip", "AFIND"])
        "; did you mean 'Gossip'?"
        >>> nearest("zzz", ["Gossip"])
        ''
    """
    by_lower = {choice.lower(): choice for choice in reversed(list(choices))}  # of a class and its module the class
    close = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=0.6)
    return f"; did you mean '{by_lower[close[0]]}'?" if close else ""
