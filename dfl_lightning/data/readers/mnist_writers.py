"""The writers of MNIST's digits, as identified by QMNIST (Yadav & Bottou 2019)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from dfl_lightning.utils.errors import MissingData, UserError, reason
from dfl_lightning.utils.storage.files import read_bounded, read_npz

__all__ = ["download_writers", "read_writers"]

NPZ = "mnist_writers.npz"
LABELS = ("QMNIST/raw/qmnist-train-labels-idx2-int", "QMNIST/raw/qmnist-test-labels-idx2-int")
IDX_INT_2D = bytes([0, 0, 0x0C, 2])  # magic number of an idx file: integers, two dimensions
_MOST_BYTES = 64 * 10**6
CLASS_COLUMN, WRITER_COLUMN = 0, 2


def download_writers(root: Path) -> None:
    """Download QMNIST's two label files, unless they or a file of writers exist already.

    Raises:
        UserError: the files cannot be downloaded.
    """
    if (root / NPZ).is_file() or all((root / file).is_file() for file in LABELS):
        return
    from torchvision.datasets import QMNIST  # imported here, as it takes seconds and few runs need it
    from torchvision.datasets.utils import download_and_extract_archive

    try:
        for part in ("train", "test"):
            url, md5 = next(entry for entry in QMNIST.resources[part] if "labels" in entry[0])
            download_and_extract_archive(url, str(root / "QMNIST" / "raw"), md5=md5)
    except (RuntimeError, OSError, EOFError) as error:
        raise UserError(
            f"data MNIST: the writers for partition ByWriter cannot be downloaded ({reason(error)}); go "
            f"online, or put QMNIST's label files into '{root / 'QMNIST' / 'raw'}'"
        ) from error


def read_writers(
    root: Path, labels: np.ndarray, test_labels: np.ndarray
) -> tuple[tuple[str, ...], np.ndarray, np.ndarray]:
    """Read the writers of MNIST's images, in torchvision's order.

    They are read from `mnist_writers.npz` (integer arrays `train_writer` [60000], `test_writer` [10000]: NIST's
    numbers), else from QMNIST's label files as torchvision stores them, whose first rows are MNIST's images.

    Args:
        root: folder of the data sets.
        labels: classes of the training images, int64 [N], which QMNIST's must equal.
        test_labels: classes of the test images, int64 [T].

    Returns:
        NIST's numbers of all writers as texts; for each training image the index of its writer in them, int64 [N]; and
        for each test image, int64 [T].

    Raises:
        UserError: there is no such file, or it does not belong to these images.
    """
    if (root / NPZ).is_file():
        writers = _of_npz(root / NPZ, len(labels), len(test_labels))
    elif all((root / file).is_file() for file in LABELS):
        parts = zip(LABELS, (labels, test_labels), strict=True)
        writers = [_of_qmnist(root / file, classes) for file, classes in parts]
    else:
        raise MissingData(
            f"data MNIST: partition ByWriter needs to know the writers, but root '{root}' has neither {NPZ} nor "
            f"{LABELS[0]} and the same for the test; set data.download: true, or use another partition"
        )
    numbers, indices = np.unique(np.concatenate(writers), return_inverse=True)
    indices = indices.reshape(-1).astype(np.int64)
    return tuple(str(number) for number in numbers), indices[: len(labels)], indices[len(labels) :]


def _of_npz(path: Path, *sizes: int) -> list[np.ndarray]:
    """Read the writers of training and test images from an npz file, and check their numbers."""
    try:
        arrays = list(read_npz(path, ("train_writer", "test_writer"), _MOST_BYTES).values())
    except (OSError, ValueError) as error:
        raise UserError(
            f"{path}: not a file of MNIST's writers ({reason(error)}); remove it, or make it again"
        ) from error
    for writers, size in zip(arrays, sizes, strict=True):
        if writers.shape != (size,) or writers.dtype.kind not in "iu":
            raise UserError(
                f"{path}: {writers.dtype} {list(writers.shape)} cannot be the writers of {size} images of MNIST; make "
                f"it again"
            )
    return arrays


def _of_qmnist(path: Path, labels: np.ndarray) -> np.ndarray:
    """Read the writers of images from a label file of QMNIST, and check that its classes are those of the images."""
    try:
        content = read_bounded(path, _MOST_BYTES)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); make it readable or remove it") from error
    except ValueError as error:
        raise UserError(f"{path}: not QMNIST's label file ({error}); remove it and download it again") from error
    rows, columns = (int.from_bytes(content[start : start + 4], "big") for start in (4, 8))
    if content[:4] != IDX_INT_2D or len(content) != 12 + 4 * rows * columns or columns <= WRITER_COLUMN:
        raise UserError(f"{path}: not QMNIST's label file, or only a part of it; remove it and download it again")
    table = np.frombuffer(content, dtype=">i4", offset=12).reshape(rows, columns)[: len(labels)]
    if not np.array_equal(table[:, CLASS_COLUMN], labels):
        raise UserError(f"{path}: its classes are not those of MNIST's images; remove it and download it again")
    return table[:, WRITER_COLUMN].astype(np.int64)
