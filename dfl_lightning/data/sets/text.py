"""Texts in characters, one client for each file, folder or module of Python."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import sys
from collections import Counter
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from dfl_lightning.data.datamodule import FederatedData
from dfl_lightning.data.partitions import ByWriter, Partition
from dfl_lightning.data.source import Source
from dfl_lightning.utils.errors import MissingData, UserError, reason
from dfl_lightning.utils.words import as_percent

__all__ = ["Text"]

PADDING, OTHER, FIRST = 0, 1, 2
"""Codes of padding, of all rare characters, and of the most frequent character."""
MOST_CHARACTERS = 256
MOST_RARE = 0.01
_TESTS = frozenset(("test", "tests", "testing"))


class Text(FederatedData):
    """Texts in characters, whose next character is predicted (`NextToken`); each text is a client.

    A text is cut into consecutive blocks of `length` characters. The last part of each text is its client's test data,
    so that all test blocks follow the training blocks; validation blocks are drawn from the other part. The last block
    of a text is padded, and padding is ignored. Code 0 is the padding, 1 stands for all rare characters, and the others
    follow in the order of their frequency in the training parts.

    Without a path the texts are the modules of Python's own library, so that nothing is downloaded. They differ between
    versions of Python, so that the version is a part of the data set's name; the split file has a checksum of the
    targets.

    With `packages` the texts are the modules of installed packages of Python, and each package is a ground-truth
    cluster of clients. The versions of the packages are a part of the data set's name.

    Args:
        path: a folder, whose files `*.txt` and subfolders with such files are a text each; null means Python's library.
        packages: names of installed packages, whose modules are the texts, those of their tests left out; instead of
            `path`.
        half: `first` or `second`, every other text in the order of names, beginning with the first or the second one;
            null means all texts. Both halves have the same codes, those of all texts, so that a network that was
            trained on one half is a start for the other one.
        length: number of characters of a block, T.
        characters: number of distinct characters C, at most 256, padding and rare ones included.
        most: largest number of characters that are read from the beginning of a text; null reads all.
        held_out: share of each text, at its end, that is its test data; 0 means no test.
        num_clients: number of clients, whose texts are drawn at random from those with enough blocks.
        partition: rule that divides the blocks; null means `ByWriter`, a client for each text.
        **kwargs: `val_fraction`, `samples_per_client`, `seed` and `split` of `FederatedData`.
    """

    noun = "block"

    def __init__(
        self,
        path: str | None = None,
        packages: list[str] | None = None,
        half: Literal["first", "second"] | None = None,
        length: int = 32,
        characters: int = 96,
        most: int | None = 20000,
        held_out: float = 0.2,
        num_clients: int = 20,
        partition: Partition | None = None,
        **kwargs: Any,
    ) -> None:
        if length < 1 or not 3 <= characters <= MOST_CHARACTERS or (most is not None and most < 2):
            raise UserError(
                f"data Text: length={length}, characters={characters}, most={most}; a block has 1 character or more, "
                f"there are 3 to {MOST_CHARACTERS} characters, and 2 or more of a text are read"
            )
        if not 0 <= held_out < 1:
            raise UserError(f"data Text: held_out={held_out}; it must be at least 0 and less than 1")
        if packages is not None and (path is not None or not packages):
            raise UserError(f"data Text: packages={packages}, path={path}; give a path, or at least one package")
        for name in ("normalise", "augment"):
            if kwargs.get(name):
                raise UserError(f"data Text: data.{name} is for images; leave it out")
        if kwargs.get("test_fraction") is not None:
            raise UserError("data Text: test_fraction would draw test blocks at random; use held_out, the last part")
        kwargs["test_fraction"] = None if held_out else 0.0
        super().__init__(num_clients, ByWriter(min_samples=1) if partition is None else partition, **kwargs)
        self.path, self.length, self.characters, self.most, self.held_out = path, length, characters, most, held_out
        self.packages, self.half = packages, half
        self._rare = 0.0

    def load(self) -> Source:
        """Read the texts in the order of their names."""
        texts = self._read_all()
        texts = {name: text[: self.most] for name, text in texts.items() if len(text[: self.most]) > 1}
        if not texts:
            raise UserError(f"data Text: no text of {self.path} has 2 characters; give longer ones")
        ends = {name: self._end_of_training(text) for name, text in texts.items()}
        counts: Counter[str] = Counter()
        for name, text in texts.items():
            counts.update(text[: ends[name] * self.length])
        frequent = sorted(counts, key=lambda c: (-counts[c], c))[: self.characters - FIRST]
        table = np.full(sys.maxunicode + 1, OTHER, np.int64)
        table[[ord(character) for character in frequent]] = np.arange(FIRST, FIRST + len(frequent))
        self._rare = 1 - sum(counts[character] for character in frequent) / counts.total()
        if self.half is not None:
            texts = dict(list(texts.items())[self.half == "second" :: 2])
        owners: list[list[int]] = [[], []]
        blocks: list[list[list[np.ndarray]]] = [[[], []], [[], []]]
        for owner, (name, text) in enumerate(texts.items()):
            codes = table[np.frombuffer(text.encode("utf-32-le"), np.dtype("<u4"))]
            inputs, targets = _blocks(codes, self.length)
            for part, chosen in enumerate((slice(None, ends[name]), slice(ends[name], None))):
                blocks[part][0].append(inputs[chosen])
                blocks[part][1].append(targets[chosen])
                owners[part] += [owner] * len(inputs[chosen])
        (inputs, targets), (test_inputs, test_targets) = ([np.concatenate(a) for a in part] for part in blocks)
        tested = len(test_targets) > 0
        if self.held_out and not tested:
            raise UserError(
                f"data Text: held_out={self.held_out} leaves no text a test block: the longest has "
                f"{max(map(len, texts.values()))} characters; lower length ({self.length}), or give longer texts"
            )
        writers, test_writers = (torch.tensor(of_part, dtype=torch.int64) for of_part in owners)
        return Source(
            self._name() + (f", {self.half} half" if self.half else ""),
            torch.from_numpy(inputs.astype(np.uint8)),
            torch.from_numpy(targets),
            self.characters,
            torch.from_numpy(test_inputs.astype(np.uint8)) if tested else None,
            torch.from_numpy(test_targets) if tested else None,
            writers=writers,
            test_writers=test_writers if tested else None,
            writer_names=tuple(texts),
            strata=writers,
            test_strata=test_writers if tested else None,
            words=tuple(frequent),
            writer_groups=tuple(self.packages.index(name.partition(".")[0]) for name in texts) if self.packages else (),
        )

    def notes(self) -> list[str]:
        """Return remarks for the user before training, in addition a large share of rare characters."""
        rare = (
            f"{as_percent(self._rare)} of the characters are rare ones that count as one, so that perplexity is too "
            f"low; data.characters keeps more than {self.characters}, {MOST_CHARACTERS} at most"
        )
        return [*super().notes(), *([rare] if self._rare > MOST_RARE else [])]

    def _read_all(self) -> dict[str, str]:
        """Read the texts by name."""
        if self.packages:
            return {name: text for package in self.packages for name, text in _of_package(package).items()}
        return _library() if self.path is None else _of_folder(Path(self.path))

    def _name(self) -> str:
        """Name the data set, with the versions of what others may have in another version."""
        if self.packages:
            return ", ".join(f"{package} {_version(package)}" for package in self.packages)
        return f"Python {platform.python_version()}'s library" if self.path is None else f"Text {Path(self.path).name}"

    def _end_of_training(self, text: str) -> int:
        """Count the blocks of a text that are not held out."""
        blocks = -(-(len(text) - 1) // self.length)
        return blocks - int(self.held_out * blocks)


def _blocks(codes: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Cut codes into blocks of inputs and of the codes that follow them, int64 [N, T] each; padded targets are -1."""
    count = -(-(len(codes) - 1) // length)
    inputs, targets = np.full(count * length, PADDING), np.full(count * length, -1)
    inputs[: len(codes) - 1], targets[: len(codes) - 1] = codes[:-1], codes[1:]
    return inputs.reshape(count, length), targets.reshape(count, length)


def _library() -> dict[str, str]:
    """Read the modules of Python's own library, without packages, by name."""
    folder = Path(os.__file__).parent
    return {file.stem: _read(file) for file in sorted(folder.glob("*.py"))}


def _of_package(package: str) -> dict[str, str]:
    """Read the modules of an installed package, without importing it, by name; folders of tests are left out."""
    found = importlib.util.find_spec(package) if package.isidentifier() else None
    if found is None or not found.submodule_search_locations:
        raise MissingData(f"data.packages: '{package}' is not an installed package; pip install it, or leave it out")
    root = Path(found.submodule_search_locations[0])
    files = {".".join((package, *file.relative_to(root).with_suffix("").parts)): file for file in root.rglob("*.py")}
    return {name: _read(files[name]) for name in sorted(files) if _TESTS.isdisjoint(name.split("."))}


def _version(package: str) -> str:
    """Look up the version of an installed package, which may have another name than its distribution."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:  # looked up in all files that are installed, which takes seconds
        found = importlib.metadata.packages_distributions().get(package)
        return importlib.metadata.version(found[0]) if found else "of no version"


def _of_folder(folder: Path) -> dict[str, str]:
    """Read the texts of a folder by name: each file, and the joined files of each subfolder."""
    if not folder.is_dir():
        raise MissingData(f"data.path: {folder} is not a folder; give one with files *.txt, or leave it out")
    texts: dict[str, str] = {}
    for entry in sorted(folder.iterdir()):
        if entry.suffix == ".txt" and entry.is_file():
            texts[entry.name] = _read(entry)
        elif entry.is_dir() and (files := sorted(entry.rglob("*.txt"))):
            texts[entry.name] = "\n".join(map(_read, files))
    if not texts:
        raise MissingData(f"data.path: {folder} has no files *.txt, nor folders with such; give another folder")
    return texts


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise UserError(f"{file}: cannot be read as UTF-8 ({reason(error)}); convert it, or take it away") from error
