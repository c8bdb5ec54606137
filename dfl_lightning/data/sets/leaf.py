"""The data sets of LEAF in general: vectors or texts of many users, from json files."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from dfl_lightning.data.datamodule import FederatedData
from dfl_lightning.data.partitions import ByWriter, Partition
from dfl_lightning.data.readers.items import count_classes
from dfl_lightning.data.readers.leaf import read_users
from dfl_lightning.data.source import Source
from dfl_lightning.utils.errors import MissingData, UserError

__all__ = ["LEAF"]

Kind = Literal["vectors", "characters", "words"]

_WORD = re.compile(r"[\w']+|[.,!?;]")
_PADDING, _OTHER, _FIRST = 0, 1, 2  # codes: what fills up a line, rare characters or words, and the most frequent one
_MOST_CODES = 256  # codes of characters are bytes


class LEAF(FederatedData):
    """Samples of many users from LEAF's json files (Caldas et al. 2018), such as Shakespeare, Sent140 and Synthetic.

    What a file holds follows from its samples x and targets y. Vectors of numbers are inputs as they are, with classes
    or, where y has fractions, numbers as targets (Synthetic). Texts with a character each as y are lines of characters,
    of which the next one is predicted after the last (Shakespeare): the task is `NextToken`, and all other places of a
    line are ignored. Texts, or lists of texts, with classes as y (Sent140) are counts of the most frequent words, or
    lines of words. Characters and words are those of the training files.

    Args:
        path: a folder with LEAF's folders `train` and `test` of json files, or with json files, or such a file; without
            `test` a share of each client's own samples is held out, see `test_fraction`.
        characters: number of different characters C, at most 256, padding and rare ones included.
        words: number of different words that are counted; the rest is ignored.
        length: words of a line, which are numbered from 2 on; 0 is padding at the end, 1 a rare word. Null: counts.
        field: the entry of a sample that is the text, where samples are lists of texts, counted from 0; null means the
            longest one on average.
        partition: rule that divides the training samples; null means `ByWriter`, a client for each user.
        **kwargs: all other options of `FederatedData`.
    """

    def __init__(
        self,
        path: str,
        characters: int = 96,
        words: int = 1000,
        length: int | None = None,
        field: int | None = None,
        partition: Partition | None = None,
        **kwargs: Any,
    ) -> None:
        if not 3 <= characters <= _MOST_CODES or words < 1 or (length is not None and length < 1):
            raise UserError(
                f"data LEAF: characters={characters}, words={words}, length={length}; there are 3 to {_MOST_CODES} "
                "characters, and a word or more"
            )
        if partition is None:
            partition = ByWriter(min_samples=3 if kwargs.get("val_fraction") else 2)
        super().__init__(partition=partition, **kwargs)
        self.path, self.characters, self.words, self.length, self.field = path, characters, words, length, field
        self._remarks: list[str] = []

    def prepare_data(self) -> None:
        """Check that the files exist; nothing is downloaded."""
        self._files()

    def load(self) -> Source:
        """Read all files; see the class for what they become."""
        train_files, test_files = self._files()
        train = _Part.read(train_files)
        test = _Part.read(test_files) if test_files else None
        kind = train.kind
        if test is not None and test.kind != kind:
            raise UserError(f"data LEAF: training samples are {kind}, test samples {test.kind}; give files of one kind")
        parts = [part for part in (train, test) if part is not None]
        self._remarks = []
        codes: tuple[str, ...] = ()
        if kind == "vectors":
            inputs = _vectors(parts)
        elif kind == "characters":
            inputs, codes = self._lines(parts)
        else:
            inputs, codes = self._counts(parts)
        targets, num_classes = self._targets(parts, kind, codes)
        names = tuple(sorted({*train.users, *(test.users if test is not None else ())}))
        owners = [part.owners(names) for part in parts]
        lines = kind == "characters"
        has_test = test is not None
        return Source(
            f"LEAF {_name(Path(self.path))}",
            inputs[0],
            targets[0],
            num_classes,
            inputs[1] if has_test else None,
            targets[1] if has_test else None,
            writers=owners[0],
            test_writers=owners[1] if has_test else None,
            writer_names=names,
            strata=owners[0] if lines else None,
            test_strata=owners[1] if lines and has_test else None,
            words=tuple(codes),
        )

    def notes(self) -> list[str]:
        """Return remarks for the user before training, in addition what was taken for the text of a sample."""
        return [*super().notes(), *self._remarks]

    def _files(self) -> tuple[list[Path], list[Path]]:
        """Return the json files of training and test; the latter are none if they are not apart."""
        path = Path(self.path)
        if path.is_file():
            return [path], []
        folders = [path / part for part in ("train", "test")] if (path / "train").is_dir() else [path]
        found = [sorted(folder.glob("*.json")) for folder in folders if folder.is_dir()]
        for folder, files in zip(folders, found, strict=False):
            if not files:
                raise MissingData(f"data LEAF: {folder} has no json file; make them with LEAF's preprocess.sh")
        if not found:
            raise MissingData(
                f"data LEAF: {path} does not exist; give a folder with LEAF's train and test as data.path"
            )
        return found[0], found[1] if len(found) > 1 else []

    def _lines(self, parts: Sequence[_Part]) -> tuple[list[Tensor], tuple[str, ...]]:
        """Number the characters of lines, which are filled up at their beginning, uint8 [N, T]."""
        counts = Counter(character for x, y in zip(parts[0].x, parts[0].y, strict=True) for character in x + y)
        known = tuple(sorted(counts, key=lambda each: (-counts[each], each))[: self.characters - _FIRST])
        numbers = {character: number for number, character in enumerate(known, _FIRST)}
        longest = max(len(x) for part in parts for x in part.x)
        inputs = []
        for part in parts:
            codes = np.full((len(part.x), longest), _PADDING, np.uint8)
            for row, line in enumerate(part.x):
                codes[row, longest - len(line) :] = [numbers.get(character, _OTHER) for character in line]
            inputs.append(torch.from_numpy(codes))
        return inputs, known

    def _counts(self, parts: Sequence[_Part]) -> tuple[list[Tensor], tuple[str, ...]]:
        """Count the words of texts, uint8 [N, words], or number them in lines, float32 [N, length]."""
        field = self._field_of(parts[0])
        texts = [[_WORD.findall((x if field is None else x[field]).lower()) for x in part.x] for part in parts]
        counts = Counter(word for words in texts[0] for word in words)
        known = tuple(sorted(counts, key=lambda each: (-counts[each], each))[: self.words])
        if self.length is None:
            numbers = {word: number for number, word in enumerate(known)}
            tables = [np.zeros((len(part), len(known)), np.uint8) for part in texts]
            for table, part in zip(tables, texts, strict=True):
                for row, words in enumerate(part):
                    for number, count in Counter(numbers[word] for word in words if word in numbers).items():
                        table[row, number] = min(count, 255)
            return [torch.from_numpy(table) for table in tables], known
        numbers = {word: number for number, word in enumerate(known, _FIRST)}
        lines = [np.full((len(part), self.length), _PADDING, np.float32) for part in texts]
        for of_part, part in zip(lines, texts, strict=True):
            for row, words in enumerate(part):
                codes = [numbers.get(word, _OTHER) for word in words[: self.length]]
                of_part[row, : len(codes)] = codes
        return [torch.from_numpy(of_part) for of_part in lines], known

    def _field_of(self, train: _Part) -> int | None:
        """Return the entry of a sample that is the text; None if samples are texts."""
        if isinstance(train.x[0], str):
            return None
        lengths = [np.mean([len(x[field]) for x in train.x]) for field in range(len(train.x[0]))]
        if self.field is None:
            field = int(np.argmax(lengths))
            self._remarks.append(f"data.field: entry {field} of a sample is taken for its text, the longest on average")
            return field
        if not 0 <= self.field < len(lengths):
            raise UserError(f"data LEAF: field={self.field}; samples have the entries 0 to {len(lengths) - 1}")
        return self.field

    def _targets(self, parts: Sequence[_Part], kind: Kind, codes: Sequence[str]) -> tuple[list[Tensor], int]:
        """Convert targets: classes int64 [N], numbers float64 [N], or the last place of lines, int64 [N, T]."""
        if kind == "characters":
            numbers = {character: number for number, character in enumerate(codes, _FIRST)}
            longest = max(len(x) for part in parts for x in part.x)
            lines = [np.full((len(part.y), longest), -1, np.int64) for part in parts]
            for of_part, part in zip(lines, parts, strict=True):
                of_part[:, -1] = [numbers.get(character, _OTHER) for character in part.y]
            return [torch.from_numpy(of_part) for of_part in lines], self.characters
        values = [torch.tensor(part.y, dtype=torch.float64) for part in parts]
        if not all(bool((each == each.round()).all()) for each in values):
            return values, 0
        classes = [each.long() for each in values]
        return classes, count_classes(torch.cat(classes), f"LEAF {_name(Path(self.path))}")


class _Part(NamedTuple):
    """Training or test samples: x and y of all users, and for each user its number of samples."""

    x: list[Any]
    y: list[Any]
    users: dict[str, int]

    @classmethod
    def read(cls, files: Sequence[Path]) -> _Part:
        """Read the samples of some files in the order of the users' names; a user is in one file only."""
        of_user: dict[str, tuple[list[Any], list[Any]]] = {}
        for file in files:
            for user, x, y in read_users(file, _checked):
                if user in of_user:
                    raise UserError(f"{file}: user {user} is in another file, too; remove one of them")
                of_user[user] = x, y
        part = cls([], [], {})
        for user in sorted(of_user):
            x, y = of_user[user]
            part.x.extend(x)
            part.y.extend(y)
            part.users[user] = len(y)
        if not part.y:
            raise UserError(f"data LEAF: {files[0].parent} has no sample; use other files")
        part.refuse_mixed(files[0].parent)
        return part

    @property
    def kind(self) -> Kind:
        """The kind of the samples."""
        if _form(self.x[0])[0] == "numbers":
            return "vectors"
        return "characters" if isinstance(self.y[0], str) else "words"

    def refuse_mixed(self, folder: Path) -> None:
        """Raise if samples or targets are of several forms."""
        forms = {(_form(x), "text" if isinstance(y, str) else "number") for x, y in zip(self.x, self.y, strict=True)}
        if len(forms) > 1:
            raise UserError(f"data LEAF: {folder} has samples of several forms; give files of one data set")
        if isinstance(self.y[0], str) and not (_form(self.x[0])[0] == "text" and all(len(y) == 1 for y in self.y)):
            raise UserError(
                f"data LEAF: {folder}: y is a text, {self.y[0][:20]!r}; targets are classes, numbers, or after a text "
                "its next character"
            )

    def owners(self, names: Sequence[str]) -> Tensor:
        """Return the user of each sample as an index of the names, int64 [N]."""
        numbers = {name: number for number, name in enumerate(names)}
        return torch.tensor([numbers[user] for user, size in self.users.items() for _ in range(size)])


def _form(x: Any) -> tuple[str, int]:
    """Name the form of a sample, with the length of a list."""
    if isinstance(x, str):
        return "text", 0
    return ("texts" if isinstance(x[0], str) else "numbers"), len(x)


def _checked(user: str, x: list[Any], y: list[Any]) -> tuple[list[Any], list[Any]]:
    """Return samples and targets; a number is a vector with one entry.

    Raises:
        ValueError: a sample is neither a text nor a list of texts or of finite numbers, or a target neither a text nor
            a finite number.
    """
    x = [each if isinstance(each, (str, list)) else [each] for each in x]
    for each in x:
        inside = [] if isinstance(each, str) else each
        numbers = _are_numbers(inside)
        if not isinstance(each, str) and not (each and (numbers or all(isinstance(part, str) for part in inside))):
            raise ValueError(f"a sample of user {user} is neither a text nor a list of texts or of finite numbers")
    if isinstance(x[0], list) and all(isinstance(each, str) and each.isdecimal() for each in y):
        y = [int(each) for each in y]
    if not (_are_numbers(y) or all(isinstance(each, str) for each in y)):
        raise ValueError(f"the targets of user {user} are neither finite numbers nor texts")
    return x, y


def _are_numbers(values: Sequence[Any]) -> bool:
    return all(type(value) in (int, float) and abs(value) < np.inf for value in values)


def _vectors(parts: Sequence[_Part]) -> list[Tensor]:
    """Convert vectors to float32 [N, d]."""
    inputs = [torch.tensor(part.x, dtype=torch.float64).float() for part in parts]
    if any(each.shape[1:] != inputs[0].shape[1:] for each in inputs):
        raise UserError("data LEAF: vectors of training and test differ in length; give files of one data set")
    return inputs


def _name(path: Path) -> str:
    """Name the data by its file or folder, and not by LEAF's own `data`."""
    names: Iterator[str] = (part for part in reversed(path.resolve().parts) if part not in ("data", "train"))
    return next(names, path.name)
