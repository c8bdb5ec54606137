"""Torchvision's data sets, which are downloaded on request.

Torchvision is imported when a data set is opened, as its import takes seconds.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from dfl_lightning.data.datamodule import ROOT_VARIABLE, FederatedData
from dfl_lightning.data.readers.mnist_writers import download_writers, read_writers
from dfl_lightning.data.source import Source
from dfl_lightning.utils.errors import MissingData, UserError, reason

__all__ = ["CIFAR10", "CIFAR100", "MNIST", "FashionMNIST"]


class TorchvisionData(FederatedData):
    """Base class of torchvision's data sets, with files in `root`, an official test set and pixels scaled to [0, 1].

    Args:
        download: True to download missing files.
        crop: side of the square in the middle of each image that is used, in pixels; null uses the whole image. Small
            images make training cheap.
        **kwargs: all other options of `FederatedData`.

    Raises:
        UserError: images have fewer pixels than `crop`.
    """

    shipped_images = True

    original: ClassVar[str]
    """The name of the data set in `torchvision.datasets`."""
    num_classes: ClassVar[int]

    def __init__(self, download: bool = True, crop: int | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.download = download
        self.crop = crop
        self._opened: dict[tuple[Path, bool], Any] = {}  # data sets opened by `prepare_data` and not yet used by `load`

    def prepare_data(self) -> None:
        """Download missing files; Lightning calls this in one process only."""
        for train in (True, False):
            self._opened[self.root, train] = self._open(train, self.download)

    def load(self) -> Source:
        """Load training and test images in torchvision's order, uint8 [N, C, H, W]."""
        images, labels = self._tensors(train=True)
        test_images, test_labels = self._tensors(train=False)
        name = type(self).__name__
        return Source(name, images, labels, self.num_classes, test_images, test_labels, scale=1 / 255)

    def _tensors(self, train: bool) -> tuple[Tensor, Tensor]:
        """Return images uint8 [N, C, H, W] and classes int64 [N] of the training or the test part."""
        data = self._opened.pop((self.root, train), None) or self._open(train, download=False)
        images = torch.as_tensor(data.data)
        # MNIST's images are [N, H, W], CIFAR's are [N, H, W, C].
        images = images.unsqueeze(1) if images.ndim == 3 else images.permute(0, 3, 1, 2)
        return self._middle(images).contiguous(), torch.as_tensor(data.targets, dtype=torch.int64)

    def _middle(self, images: Tensor) -> Tensor:
        """Return the middle pixels of images [N, C, H, W], as torchvision's `center_crop` does: [N, C, crop, crop]."""
        if self.crop is None:
            return images
        height, width = images.shape[2:]
        if not 1 <= self.crop <= min(height, width):
            raise UserError(
                f"data.crop is {self.crop}, but images of {type(self).__name__} have {height} x {width} pixels; set it "
                f"to 1 to {min(height, width)}"
            )
        top, left = round((height - self.crop) / 2), round((width - self.crop) / 2)
        return images[:, :, top : top + self.crop, left : left + self.crop]

    @classmethod
    def dataset(cls, root: Path, train: bool, download: bool) -> Any:
        """Open a part of torchvision's data set.

        Args:
            root: folder of the data sets' files.
            train: True for the training part, False for the test part.
            download: True to download missing files.

        Raises:
            RuntimeError: files are missing or damaged.
            OSError: files cannot be downloaded or read.
        """
        from torchvision import datasets

        original = getattr(datasets, cls.original)
        if issubclass(original, datasets.CIFAR10):
            original = _checked_once(original)
        return original(root, train=train, download=download)

    def _open(self, train: bool, download: bool) -> Any:
        try:
            return self.dataset(self.root, train=train, download=download)
        except (RuntimeError, OSError, EOFError) as error:
            name = type(self).__name__
            if download:
                how = f"cannot be downloaded ({reason(error)}); go online"
            elif self.download:
                how = "are missing or damaged; call prepare_data() first to download them"
            else:
                how = "are missing or damaged, and data.download is false; set it to true"
            raise MissingData(
                f"data {name}: its files are not in root '{self.root}' and {how}, or name the folder that has them by "
                f"data.root or the environment variable {ROOT_VARIABLE}"
            ) from error


_intact: set[tuple[str, str, int, int, int, int]] = set()
"""Files whose hashes this process has verified: path, hash, device, inode, size and time of the last change."""


def _checked_once(original: type) -> type:
    """Extend torchvision's CIFAR to hash its 170 MB once for each state of the files, not four times for each run.

    Args:
        original: torchvision's class `CIFAR10`, or `CIFAR100`, which is derived from it.
    """

    class Checked(original):
        def _check_integrity(self) -> bool:
            before = self._states()
            if before is not None and before <= _intact:
                return True
            intact = bool(super()._check_integrity())
            if intact and before is not None and before == self._states():  # no file has changed meanwhile
                _intact.update(before)
            return intact

        def _states(self) -> set[tuple[str, str, int, int, int, int]] | None:
            states = set()
            for name, md5 in self.train_list + self.test_list:
                path = Path(self.root, self.base_folder, name).absolute()
                try:
                    state = path.stat()
                except OSError:
                    return None
                states.add((str(path), md5, state.st_dev, state.st_ino, state.st_size, state.st_ctime_ns))
            return states

    return Checked


class MNIST(TorchvisionData):
    """Handwritten digits (LeCun et al. 1998): 60,000 + 10,000 grey images of 28 x 28 pixels, 10 classes.

    For the partition `ByWriter` the writers are read, too: 539 for training, 297 different ones for the test.
    """

    original = "MNIST"
    num_classes = 10

    def prepare_data(self) -> None:
        """Download missing files; Lightning calls this in one process only."""
        super().prepare_data()
        if self._by_writer and self.download:
            download_writers(self.root)

    def load(self) -> Source:
        """Load the images and, if the partition needs them, their writers; see `TorchvisionData.load`."""
        source = super().load()
        if not self._by_writer:
            return source
        assert source.test_labels is not None
        names, writers, test_writers = read_writers(self.root, source.labels.numpy(), source.test_labels.numpy())
        return dataclasses.replace(
            source,
            writers=torch.from_numpy(writers),
            test_writers=torch.from_numpy(test_writers),
            writer_names=names,
        )

    @property
    def _by_writer(self) -> bool:
        return self.partition.needs_writers and self.split is None


class FashionMNIST(TorchvisionData):
    """Clothing (Xiao et al. 2017): 60,000 + 10,000 grey images of 28 x 28 pixels, 10 classes."""

    original = "FashionMNIST"
    num_classes = 10


class CIFAR10(TorchvisionData):
    """Photographs (Krizhevsky 2009): 50,000 + 10,000 colour images of 32 x 32 pixels, 10 classes."""

    original = "CIFAR10"
    num_classes = 10


class CIFAR100(TorchvisionData):
    """Photographs (Krizhevsky 2009): 50,000 + 10,000 colour images of 32 x 32 pixels, 100 fine classes."""

    original = "CIFAR100"
    num_classes = 100
