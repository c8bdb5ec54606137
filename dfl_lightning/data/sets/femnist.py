"""FEMNIST: handwritten characters of many writers, from LEAF's files or one npz."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dfl_lightning.data.datamodule import ROOT_VARIABLE, FederatedData
from dfl_lightning.data.partitions import ByWriter, Partition
from dfl_lightning.data.readers.leaf import as_bytes, read_leaf_file
from dfl_lightning.data.source import Source
from dfl_lightning.utils.errors import MissingData, UserError, reason
from dfl_lightning.utils.storage.files import read_npz, write_npz

__all__ = ["FEMNIST"]

NUM_CLASSES = 62
SIDE = 28
HOW = "make them with LEAF (data/femnist: ./preprocess.sh -s niid --sf 1.0 -k 0 -t sample)"


class FEMNIST(FederatedData):
    """Handwritten digits and letters by writer (LEAF, Caldas et al. 2018): grey images of 28 x 28 pixels, 62 classes.

    Classes are 0–9, A–Z (10–35), a–z (36–61). Ink is black (0) on white, in contrast to MNIST.

    Args:
        path: a folder with LEAF's `train` and `test` json files, or an npz file; null searches `root` for the folders
            `femnist` and `femnist/data` and for files `femnist*.npz`.
        classes: the classes that are kept, renamed to 0, 1, … in this order; null keeps all 62. The ten letters a to
            j of the FedProx paper (Li et al. 2020) are `[36, 37, 38, 39, 40, 41, 42, 43, 44, 45]`.
        partition: rule that divides the training images; null means `ByWriter`.
        **kwargs: all other options of `FederatedData`.
    """

    shipped_images = True

    def __init__(
        self,
        path: str | None = None,
        classes: Sequence[int] | None = None,
        partition: Partition | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(partition=ByWriter() if partition is None else partition, **kwargs)
        if classes is not None and (
            not classes or len(set(classes)) < len(classes) or not all(0 <= label < NUM_CLASSES for label in classes)
        ):
            raise UserError(f"data.classes must list classes from 0 to {NUM_CLASSES - 1}, none twice, not {classes}")
        self.path = path
        self.classes = None if classes is None else list(classes)

    def prepare_data(self) -> None:
        """Check that the files exist; nothing is downloaded."""
        self._find()

    def load(self) -> Source:
        """Load images ordered by writer, uint8 [N, 1, 28, 28], or float32 if bytes would change them."""
        path = self._find()
        train, test = (_read_npz if path.is_file() else _read_leaf)(path)
        names = sorted({*train.names, *test.names})
        parts = [part.by_writer(names).only(self.classes) for part in (train, test)]
        for part, what in zip(parts, ("training", "test"), strict=True):
            if not len(part.labels):
                kept = "" if self.classes is None else f" of classes {self.classes}"
                raise UserError(f"data FEMNIST: {path} has no {what} image{kept}; use other files or classes")
        images, scale = _joined([part.images for part in parts])
        end = len(parts[0].labels)
        return Source(
            "FEMNIST",
            images[:end],
            torch.from_numpy(parts[0].labels),
            NUM_CLASSES if self.classes is None else len(self.classes),
            images[end:],
            torch.from_numpy(parts[1].labels),
            scale,
            writers=torch.from_numpy(parts[0].writers),
            test_writers=torch.from_numpy(parts[1].writers),
            writer_names=tuple(names),
        )

    def save_npz(self, path: str | Path) -> None:
        """Write all images to an npz file, which the option `path` reads in seconds, while LEAF's files take minutes.

        The arrays are `images` uint8 [N, 28, 28], `labels` int64 [N], `writers` int32 [N], indices into `writer_ids`,
        and `is_test` bool [N].

        Raises:
            UserError: some classes are left out, the images are not bytes, or the file cannot be written.
        """
        source = self.load()
        if self.classes is not None or source.images.dtype != torch.uint8:
            raise UserError("data FEMNIST: only all classes, of images that are whole bytes, can be saved as npz")
        assert source.writers is not None
        assert source.test_writers is not None
        images, labels = source.everything()
        try:
            write_npz(
                Path(path),
                {
                    "images": images.squeeze(1).numpy(),
                    "labels": labels.numpy(),
                    "writers": torch.cat([source.writers, source.test_writers]).int().numpy(),
                    "writer_ids": np.array(source.writer_names),
                    "is_test": np.arange(len(labels)) >= len(source.labels),
                },
            )
        except OSError as error:
            raise UserError(f"{path}: cannot be written ({error}); choose another place or free the disk") from error

    def _find(self) -> Path:
        if self.path is not None:
            path = Path(self.path)
            if not (path.is_file() or (path / "train").is_dir()):
                raise MissingData(
                    f"data.path: {path} is neither an npz file nor a folder with LEAF's train and test; {HOW}"
                )
            return path
        folders = [self.root / "femnist", self.root / "femnist" / "data"]
        paths = [folder for folder in folders if (folder / "train").is_dir()] + sorted(self.root.glob("femnist*.npz"))
        if len(paths) > 1:
            raise UserError(
                f"data FEMNIST: root '{self.root}' has several: {', '.join(path.name for path in paths)}; name one by "
                f"data.path"
            )
        if not paths:
            raise MissingData(
                f"data FEMNIST: neither a folder femnist/train nor a file femnist*.npz exists in root '{self.root}'; "
                f"{HOW} and name the folder with train and test by data.path, or its parent by data.root or the "
                f"environment variable {ROOT_VARIABLE}"
            )
        return paths[0]


@dataclass(frozen=True)
class _Part:
    """Training or test images: uint8 or float32 [n, 28, 28] in pieces, labels [n], writers [n] as indices of names."""

    images: list[np.ndarray]
    labels: np.ndarray
    writers: np.ndarray
    names: list[str]

    def by_writer(self, names: list[str]) -> _Part:
        """Order the images by writers as in `names`; the images of a writer keep their order."""
        numbers = {name: number for number, name in enumerate(names)}
        writers = np.array([numbers[name] for name in self.names], dtype=np.int64)[self.writers]
        return self._select(np.argsort(writers, kind="stable"), self.labels, writers, names)

    def only(self, classes: list[int] | None) -> _Part:
        """Keep the images of some classes, which are renumbered from 0 on."""
        if classes is None:
            return self
        number = np.full(NUM_CLASSES, -1)
        number[classes] = np.arange(len(classes))
        labels = number[self.labels]
        return self._select(np.flatnonzero(labels >= 0), labels, self.writers, self.names)

    def _select(self, indices: np.ndarray, labels: np.ndarray, writers: np.ndarray, names: list[str]) -> _Part:
        """Return the images at some indices, with new labels and writers; copy images only if necessary."""
        images = self.images  # the same list if all images are selected in their order
        if len(indices) < len(labels) or (np.diff(indices) < 0).any():
            images = [_concatenate(images)[indices]]
        return _Part(images, labels[indices], writers[indices], names)


def _concatenate(pieces: list[np.ndarray]) -> np.ndarray:
    """Concatenate pieces of images; the result is uint8 if all are, otherwise float32 from 0 to 1."""
    if any(piece.dtype != np.uint8 for piece in pieces):
        pieces = [piece.astype(np.float32) / 255 if piece.dtype == np.uint8 else piece for piece in pieces]
    return np.concatenate([np.empty((0, SIDE, SIDE), dtype=pieces[0].dtype if pieces else np.uint8), *pieces])


def _joined(parts: list[list[np.ndarray]]) -> tuple[torch.Tensor, float]:
    """Concatenate all images to one tensor [N, 1, 28, 28]; return it with the factor that scales it to [0, 1]."""
    images = _concatenate([piece for part in parts for piece in part])
    return torch.from_numpy(images).unsqueeze(1), 1 / 255 if images.dtype == np.uint8 else 1.0


def _read_leaf(folder: Path) -> tuple[_Part, _Part]:
    unit: dict[str, str] = {}  # the first writer with pixels in each unit, bytes or fractions
    parts = []
    for name in ("train", "test"):
        files = sorted((folder / name).glob("*.json"))
        if not files:
            raise UserError(f"data FEMNIST: {folder / name} has no json file; {HOW}")
        images: list[np.ndarray] = []
        labels: list[np.ndarray] = []
        file_of: dict[str, Path] = {}
        for file in files:
            for writer, pixels, classes in read_leaf_file(file):
                if writer in file_of:
                    raise UserError(
                        f"{file}: writer {writer} is in {file_of[writer].name}, too; remove one of the files"
                    )
                file_of[writer] = file
                _check_labels(classes, f"{file}: writer {writer}")
                images.append(_images(pixels, file, writer, unit))
                labels.append(classes)
        numbers = np.repeat(np.arange(len(labels)), [len(classes) for classes in labels])
        empty = np.empty(0, dtype=np.int64)
        parts.append(_Part(images, np.concatenate([empty, *labels]), numbers, list(file_of)))
    return parts[0], parts[1]


def _images(pixels: np.ndarray, file: Path, writer: str, unit: dict[str, str]) -> np.ndarray:
    """Convert a writer's pixels [n, 784], from 0 to 1 or integers from 0 to 255, to uint8 or float32 [n, 28, 28]."""
    if pixels.shape[1] != SIDE * SIDE:
        raise UserError(
            f"{file}: images of writer {writer} have {pixels.shape[1]} pixels, not {SIDE} x {SIDE}; use LEAF's FEMNIST"
        )
    low, high = float(pixels.min()), float(pixels.max())
    whole = high > 1
    if low < 0 or high > 255 or (whole and (pixels % 1).any()):
        raise UserError(
            f"{file}: pixels of writer {writer} reach from {low:g} to {high:g}; they must be from 0 to 1, or whole "
            f"numbers from 0 to 255"
        )
    unit.setdefault("whole" if whole else "fraction", writer)
    if len(unit) > 1:
        raise UserError(
            f"{file}: pixels of writer {unit['fraction']} are from 0 to 1, those of writer {unit['whole']} from 0 to "
            f"255; bring all files to one scale"
        )
    exact = pixels.astype(np.uint8) if whole else as_bytes(pixels)
    return (pixels.astype(np.float32) if exact is None else exact).reshape(-1, SIDE, SIDE)


def _read_npz(path: Path) -> tuple[_Part, _Part]:
    wanted = {"images": "u", "labels": "iu", "writers": "iu", "writer_ids": "U", "is_test": "b"}
    try:
        arrays = read_npz(path, wanted)
    except (OSError, ValueError) as error:
        raise UserError(
            f"{path}: not an npz of FEMNIST ({reason(error)}); it needs the arrays {', '.join(wanted)}"
        ) from error
    number = len(arrays["labels"]) if arrays["labels"].ndim == 1 else -1
    shapes: dict[str, Callable[[np.ndarray], bool]] = {
        "images": lambda array: array.shape == (number, SIDE, SIDE) and array.dtype == np.uint8,
        "writer_ids": lambda array: array.ndim == 1 and len(np.unique(array)) == len(array),
    }
    for name, kinds in wanted.items():
        array = arrays[name]
        fits = shapes.get(name, lambda array: array.shape == (number,))
        if array.dtype.kind not in kinds or not fits(array):
            raise UserError(
                f"{path}: the array {name} is {array.dtype} {list(array.shape)}; see docs/data.md for what it must be"
            )
    _check_labels(arrays["labels"], str(path))
    names: list[str] = arrays["writer_ids"].tolist()
    if number and not 0 <= int(arrays["writers"].min()) <= int(arrays["writers"].max()) < len(names):
        raise UserError(f"{path}: the array writers names writers outside 0 to {len(names) - 1}; make the file again")
    parts = []
    for chosen in (~arrays["is_test"], arrays["is_test"]):
        labels, writers = arrays["labels"][chosen].astype(np.int64), arrays["writers"][chosen].astype(np.int64)
        parts.append(_Part([arrays["images"][chosen]], labels, writers, names))
    return parts[0], parts[1]


def _check_labels(labels: np.ndarray, where: str) -> None:
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < NUM_CLASSES:
        raise UserError(
            f"{where}: labels reach from {labels.min()} to {labels.max()}, but FEMNIST has the classes 0 to "
            f"{NUM_CLASSES - 1}; make the file again"
        )
