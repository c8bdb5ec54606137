"""CINIC-10 from its folders of images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError

from dfl_lightning.data.datamodule import ROOT_VARIABLE, FederatedData
from dfl_lightning.data.source import Source
from dfl_lightning.utils.errors import MissingData, UserError, reason

__all__ = ["CINIC10"]

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
FOLDERS = ("CINIC-10", "cinic-10", "CINIC10", "cinic10")
SIDE = 32
OTHER_IMAGES = (".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".npy")


class CINIC10(FederatedData):
    """Photographs (Darlow et al. 2018): 180,000 + 90,000 colour images of 32 x 32 pixels, CIFAR-10's classes.

    CINIC-10 is not downloaded: unpack its archive (doi.org/10.7488/ds/2448) into a folder `CINIC-10` of `root`.

    Args:
        path: the folder with `train`, `valid` and `test`; null means the folder `CINIC-10` in `root`.
        merge_valid: True to divide the 90,000 images of `valid` among the clients together with those of `train`, as in
            DPFL (appendix H.5.1); False to leave them out.
        **kwargs: all other options of `FederatedData`.
    """

    shipped_images = True

    def __init__(self, path: str | None = None, merge_valid: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.path = path
        self.merge_valid = merge_valid

    def prepare_data(self) -> None:
        """Check that the files exist; nothing is downloaded."""
        self._find()

    def load(self) -> Source:
        """Load images uint8 [N, 3, 32, 32] by class and file name; those of `valid` follow those of `train`."""
        folder = self._find()
        parts = ["train", "valid", "test"] if self.merge_valid else ["train", "test"]
        files = [_files(folder / part) for part in parts]
        images = np.empty((sum(len(part) for part in files), 3, SIDE, SIDE), dtype=np.uint8)
        for index, (path, _) in enumerate(entry for part in files for entry in part):
            images[index] = _pixels(path)
        labels = torch.tensor([label for part in files for _, label in part])
        end = len(images) - len(files[-1])
        whole = torch.from_numpy(images)
        return Source("CINIC10", whole[:end], labels[:end], len(CLASSES), whole[end:], labels[end:], scale=1 / 255)

    def _find(self) -> Path:
        candidates = [self.root / name for name in FOLDERS] if self.path is None else [Path(self.path)]
        for folder in candidates:
            if (folder / "train").is_dir():
                return folder
        where = f"root '{self.root}' has no {FOLDERS[0]}/train" if self.path is None else f"{self.path} has no train"
        raise MissingData(
            f"data CINIC10: {where}; unpack the archive of doi.org/10.7488/ds/2448 there, or name the folder with "
            f"train, valid and test by data.path, or its parent by data.root or the environment variable "
            f"{ROOT_VARIABLE}"
        )


def _files(folder: Path) -> list[tuple[Path, int]]:
    """List the image files of a part and their classes, in the same order on all machines."""
    files = []
    for label, name in enumerate(CLASSES):
        visible = sorted(path for path in (folder / name).glob("*") if not path.name.startswith("."))
        if other := next((path for path in visible if path.suffix.lower() in OTHER_IMAGES), None):
            raise UserError(f"data CINIC10: {other} is an image, but not a png; convert it or remove it")
        paths = [path for path in visible if path.suffix.lower() == ".png"]
        if not paths:
            raise UserError(
                f"data CINIC10: {folder / name} has no png file; unpack CINIC-10 again, each part has the folders "
                f"{', '.join(CLASSES)}"
            )
        files += [(path, label) for path in paths]
    return files


def _pixels(path: Path) -> np.ndarray:
    """Read a png image as uint8 [3, 32, 32]; raise if it has another format, another size, or more information."""
    try:
        with Image.open(path, formats=["PNG"]) as image:
            size, lost = image.size, _lost(image)
            if size == (SIDE, SIDE) and not lost:
                return np.asarray(image.convert("RGB")).transpose(2, 0, 1)
    except (OSError, ValueError, SyntaxError, UnidentifiedImageError, Image.DecompressionBombError) as error:
        raise UserError(f"{path}: not a whole png image ({reason(error)}); unpack CINIC-10 again") from error
    if lost:
        raise UserError(f"{path}: it {lost}, which would be lost; unpack CINIC-10 again")
    raise UserError(f"{path}: it has {size[0]} x {size[1]} pixels, not {SIDE} x {SIDE}; unpack CINIC-10 again")


def _lost(image: Image.Image) -> str:
    """Describe what would be lost by converting an image to three bytes for each pixel; empty if nothing would be."""
    if getattr(image, "n_frames", 1) > 1:
        return "has several frames"
    if image.mode.startswith(("I", "F")):
        return "has more than 8 bits a channel"
    alpha = image.has_transparency_data and image.convert("RGBA").getchannel("A").getextrema() != (255, 255)
    return "is transparent in places" if alpha else ""
