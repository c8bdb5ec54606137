"""A reader of LEAF's json files, which reads one user at a time."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sized
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from dfl_lightning.utils.errors import UserError, reason
from dfl_lightning.utils.storage.files import unique_pairs

__all__ = ["as_bytes", "read_leaf_file", "read_users"]

CHUNK = 1 << 24  # characters that are read at a time; a writer of FEMNIST has about two million
MOST = 1 << 28  # largest number of characters of one value, which must fit into memory
ROUNDING = 1e-7  # float32 rounds numbers up to 1 by at most 6e-8


def read_leaf_file(path: Path) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Read the users of a LEAF file of numbers and classes, such as FEMNIST; see `read_users`.

    Args:
        path: the file.

    Yields:
        The name of a user, its samples float64 [n, features], and their classes int64 [n]; n > 0.

    Raises:
        UserError: the file is damaged or not a LEAF file of this kind, or its parts contradict each other.
    """
    return read_users(path, _samples)


def read_users(
    path: Path, convert: Callable[[str, list[Any], list[Any]], tuple[Sized, Sized]]
) -> Iterator[tuple[str, Any, Any]]:
    """Read the users of a LEAF file (Caldas et al. 2018) in the file's order, with only a few of them in memory.

    A file is `{"users": [...], "num_samples": [...], "user_data": {user: {"x": [[...], ...], "y": [...]}}}`, with keys
    in any order. Users without samples, which LEAF leaves in `user_data`, are skipped.

    Args:
        path: the file.
        convert: function of a user's name, samples x and targets y, lists of one length; a `ValueError` or `TypeError`
            of it means that the file is of another kind.

    Yields:
        The name of a user and what `convert` returns, for users with samples.

    Raises:
        UserError: the file is damaged or not a LEAF file, or its parts contradict each other.
    """
    sizes: dict[str, int] = {}
    others: dict[str, Any] = {}
    keys: set[str] = set()
    try:
        if path.exists() and not path.is_file():  # reading a pipe would wait for its writer
            raise ValueError("it is a folder or a pipe")
        with path.open(encoding="utf-8") as file:
            text = _Json(file)
            for key in text.keys_of_object():
                if key in keys:
                    raise ValueError(f"the key {key[:40]!r} is there twice")
                keys.add(key)
                if key != "user_data":
                    others[key] = text.value()
                    continue
                for user in text.keys_of_object():
                    if user in sizes:
                        raise ValueError(f"user {user} is there twice")
                    x, y = _lists(user, text.value())
                    sizes[user] = len(y)
                    if y:
                        yield user, *convert(user, x, y)
            text.end()
        _check_sizes(sizes, others)
    except (OSError, ValueError, TypeError, KeyError, RecursionError, OverflowError) as error:
        raise UserError(
            f"{path}: not a file of LEAF ({_reason(error)}); make it again, it is damaged or of another kind"
        ) from error


def as_bytes(pixels: np.ndarray) -> np.ndarray | None:
    """Convert grey values k / 255 to bytes k, uint8; return None if this changes a value by more than float32 does.

    Examples:
        >>> as_bytes(np.array([0.0, 1.0, 0.6])), as_bytes(np.array([0.123]))
        (array([  0, 255, 153], dtype=uint8), None)
    """
    whole = np.rint(pixels * 255)
    return whole.astype(np.uint8) if (np.abs(whole / 255 - pixels) <= ROUNDING).all() else None


class _Json:
    """A parser of a json file that keeps only a window of the text in memory."""

    def __init__(self, file: TextIO) -> None:
        self.file = file
        self.window = ""
        self.at = 0
        self.ended = False
        self.decoder = json.JSONDecoder(parse_constant=_refuse_constant, object_pairs_hook=unique_pairs)

    def keys_of_object(self) -> Iterator[str]:
        """Yield the keys of the next object; the caller must read the value of a key before it takes the next key."""
        self._expect("{")
        if self._next() == "}":
            self._expect("}")
            return
        while True:
            key = self.value()
            if not isinstance(key, str):
                raise ValueError(f"a key is {str(key)[:20]}, not a text")
            self._expect(":")
            yield key
            if self._next() == "}":
                self._expect("}")
                return
            self._expect(",")

    def value(self) -> Any:
        """Read the next value."""
        self._next()
        while True:
            try:
                value, end = self.decoder.raw_decode(self.window, self.at)
                if end < len(self.window) or self.ended:  # a number at the end of the window may be incomplete
                    self.at = end
                    return value
            except json.JSONDecodeError:
                if self.ended:
                    raise
            self._read()

    def end(self) -> None:
        """Raise if anything follows the end of the object."""
        if following := self._next():
            raise ValueError(f"{following!r} follows the end")

    def _next(self) -> str:
        """Skip spaces and return the next character, which remains unread; an empty string at the end of the file."""
        while True:
            while self.at < len(self.window) and self.window[self.at] in " \t\r\n":
                self.at += 1
            if self.at < len(self.window) or self.ended:
                return self.window[self.at : self.at + 1]
            self._read()

    def _expect(self, character: str) -> None:
        """Read the next character; raise if it is another one."""
        if (following := self._next()) != character:
            where = f"{following!r} stands" if following else "the file ends"
            raise ValueError(f"{character!r} is missing where {where}")
        self.at += 1

    def _read(self) -> None:
        """Read more of the file into the window, at least as much as is left in it.

        A value that does not fit is parsed again from its beginning, so that the window must grow fast.
        """
        rest = self.window[self.at :]
        if len(rest) > MOST:
            raise ValueError(f"one of its values has more than {MOST:,} characters")
        new = self.file.read(max(CHUNK, len(rest)))
        self.ended = not new
        self.window, self.at = rest + new, 0


def _lists(user: str, entry: Any) -> tuple[list[Any], list[Any]]:
    """Return the samples x and the targets y of a user."""
    if not isinstance(entry, dict) or not isinstance(entry.get("x"), list) or not isinstance(entry.get("y"), list):
        raise ValueError(f"user {user} has no lists x and y")
    if len(entry["x"]) != len(entry["y"]):
        raise ValueError(f"user {user} has {len(entry['x'])} samples and {len(entry['y'])} classes")
    return entry["x"], entry["y"]


def _samples(user: str, x: list[Any], y: list[Any]) -> tuple[np.ndarray, np.ndarray]:
    """Convert the samples of a user to numbers, and its targets to classes."""
    if any(isinstance(each, str) for each in (x[0], y[0], *(x[0] if isinstance(x[0], list) else []))):
        raise ValueError(f"the samples of user {user} are texts, as in Shakespeare and Sent140, which data LEAF reads")
    classes = np.asarray(y)
    if classes.dtype.kind != "i" or classes.ndim != 1:
        raise ValueError(f"the classes of user {user} are not whole numbers")
    try:
        samples = np.array(x)  # without a dtype, so that texts and nulls do not become numbers
    except ValueError:
        samples = np.empty(0)
    if samples.ndim != 2 or samples.dtype.kind not in "iuf" or not np.isfinite(samples).all():
        raise ValueError(f"the samples of user {user} are not lists of numbers of one length")
    return samples.astype(np.float64), classes.astype(np.int64)


def _check_sizes(sizes: dict[str, int], others: dict[str, Any]) -> None:
    """Raise if the numbers of samples that were read differ from those in the file's other keys."""
    users, numbers = others["users"], others["num_samples"]
    if not isinstance(users, list) or not isinstance(numbers, list) or len(users) != len(numbers):
        raise ValueError("users and num_samples are not lists of one length")
    expected = dict(zip(users, numbers, strict=True))
    if len(expected) < len(users):
        twice = next(user for index, user in enumerate(users) if user in users[:index])
        raise ValueError(f"users lists {str(twice)[:40]} twice")
    for user in {**expected, **{user: size for user, size in sizes.items() if size}}:
        if expected.get(user) != sizes.get(user):
            raise ValueError(f"user {user} should have {expected.get(user, 0)} samples, but has {sizes.get(user, 0)}")


def _refuse_constant(word: str) -> float:
    raise ValueError(f"{word} is not a finite number")


def _reason(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"{error} is missing"
    if isinstance(error, RecursionError):
        return "it is nested without end"
    return reason(error)
