"""The common work of all runners: clients' images and initial weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from peer_job import build_network
from sklearn.datasets import load_digits
from torchvision.datasets import MNIST


class BadWork(Exception):
    """The work that was asked for cannot be made; the message is one sentence."""


@dataclass(frozen=True)
class Images:
    """A data set in memory.

    Args:
        name: of the data set.
        images: uint8 [N, C, H, W].
        labels: int64 [N].
        test_images: like `images`.
        test_labels: like `labels`.
    """

    name: str
    images: np.ndarray
    labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray

    @property
    def affine(self) -> tuple[float, float]:
        """Factor and summand that bring the training pixels to mean 0 and deviation 1."""
        deviation = float(self.images.std()) or 1.0
        return 1 / deviation, -float(self.images.mean()) / deviation


def load(name: str, root: str | None) -> Images:
    """Load a data set by name; `auto` is MNIST if its files are in `root`, else the embedded digits.

    Raises:
        BadWork: MNIST was asked for and its files are not there.
    """
    if name in ("auto", "MNIST"):
        try:
            return _mnist(root or "data")
        except (RuntimeError, OSError) as error:
            if name == "MNIST":
                raise BadWork(
                    f"MNIST's files are not in '{root or 'data'}'; name the folder that holds them by --data-root or "
                    "DFL_DATA_ROOT, or use --data Digits"
                ) from error
    return _digits()


def _mnist(root: str) -> Images:
    train, test = MNIST(root, train=True), MNIST(root, train=False)
    (x, y), (tx, ty) = [(part.data.numpy()[:, None], part.targets.numpy()) for part in (train, test)]
    return Images("MNIST", x, y, tx, ty)


def _digits() -> Images:
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    x, y = digits.images.astype(np.uint8)[order, None], digits.target.astype(np.int64)[order]
    held_out = len(y) // 4
    return Images("Digits", x[held_out:], y[held_out:], x[:held_out], y[:held_out])


def write(file: Path, data: Images, network: str, clients: int, samples: int, test_samples: int, seed: int) -> None:
    """Write the npz file that `peer_job.Job` reads: IID parts of equal size, the first test images, initial weights.

    Raises:
        BadWork: not enough images.
    """
    if clients * samples > len(data.labels):
        raise BadWork(
            f"{clients} clients with {samples} images each need {clients * samples}, but {data.name} has "
            f"{len(data.labels)} training images; lower --clients or --samples"
        )
    chosen = np.random.default_rng(seed).permutation(len(data.labels))[: clients * samples]
    torch.manual_seed(seed)
    state = build_network(network, data.images.shape[1:], int(data.labels.max()) + 1).state_dict()
    np.savez(
        file,
        allow_pickle=False,
        images=data.images[chosen],
        labels=data.labels[chosen].astype(np.int64),
        parts=np.arange(clients * samples).reshape(clients, samples),
        test_images=data.test_images[:test_samples],
        test_labels=data.test_labels[:test_samples].astype(np.int64),
        **{f"initial:{name}": value.numpy() for name, value in state.items()},
    )
