"""Construction of the clients' tensors from a split; each pair of a sample and a transformation is made once."""

from __future__ import annotations

import numpy as np
import numpy.ma  # otherwise np.unique imports it, again in each fork of this process
import torch
from torch import Tensor

from dfl_lightning.data.client_data import Augment, ClientData
from dfl_lightning.data.source import CHUNK, Source
from dfl_lightning.data.splits.index_lists import IndexLists
from dfl_lightning.data.splits.split import Split
from dfl_lightning.utils.errors import UserError

__all__ = ["materialise", "rotate"]


def rotate(images: Tensor, degrees: float) -> Tensor:
    """Rotate images counter-clockwise about their centre; corners are filled with zeros.

    Multiples of 90 degrees only move pixels; other angles interpolate bilinearly.

    Args:
        images: [..., H, W].
        degrees: any angle; 90 is a quarter turn.

    Examples:
        >>> rotate(torch.tensor([[[1, 2], [3, 4]]]), 90)
        tensor([[[2, 4],
                 [1, 3]]])
    """
    turns, rest = divmod(degrees % 360, 90)
    if rest == 0:
        return torch.rot90(images, int(turns), dims=(-2, -1))
    from torchvision.transforms import InterpolationMode  # imported here, as it takes seconds and few runs need it
    from torchvision.transforms import functional as vision

    chunks = [vision.rotate(chunk, degrees, InterpolationMode.BILINEAR) for chunk in images.split(CHUNK)]
    return torch.cat(chunks) if chunks else images


def materialise(source: Source, split: Split, normalise: bool = False, augment: Augment | None = None) -> ClientData:
    """Build the tensors of all clients, from which batches are gathered by indices.

    Without rotations and label maps these are the source's own tensors; otherwise they contain only samples that a
    client uses.

    Args:
        source: the data set.
        split: samples, rotation and label map of each client.
        normalise: True to normalise inputs; see `Source.affine`.
        augment: augmentation of training batches; see `ClientData`.

    Raises:
        UserError: the samples are not images that can be rotated, or they have several parts and are augmented.
    """
    if source.parts is not None and augment is not None:
        raise UserError(
            f"data {source.name}: data.augment takes images, and the inputs are {source.parts}; leave it out, and "
            "augment in the network's forward"
        )
    images, labels = source.everything()
    offset = len(source.labels) if split.test_official else 0
    train, val = list(split.train), list(split.val)
    test = [part + offset for part in split.test]
    official = np.arange(len(source.labels), len(labels))

    kinds, kind_of, kind_of_test = _transformations(split, source.num_classes)
    if len(kinds) > 1:
        # Key of a sample: kind * (number of samples) + index. Kind 0 changes nothing.
        for part, kinds_of_clients in ((train, kind_of), (val, kind_of), (test, kind_of_test)):
            for client, indices in enumerate(part):
                part[client] = kinds_of_clients[client] * len(labels) + indices
        keys = np.unique(np.concatenate([*train, *val, *test, official]))
        images, labels = _transformed(images, labels, keys, kinds)
        for part in (train, val, test):
            for client, indices in enumerate(part):
                part[client] = np.searchsorted(keys, indices)
        official = np.searchsorted(keys, official)

    if not len(official):
        official = np.unique(np.concatenate(test))
    scale, shift = source.affine(normalise)
    return ClientData(
        images=images,
        labels=labels,
        train=IndexLists(train),
        val=IndexLists(val),
        test=IndexLists(test),
        global_test=torch.from_numpy(official) if len(official) else None,
        clusters=None if split.clusters is None else torch.from_numpy(split.clusters),
        num_classes=source.num_classes,
        scale=scale,
        shift=shift,
        augment=augment,
        adversaries=None if split.adversaries is None else torch.from_numpy(split.adversaries),
        target_scale=source.target_scale,
        target_shift=source.target_shift,
        categories=source.categories,
        parts=source.parts,
    )


Kind = tuple[float, tuple[int, ...]]
"""A transformation: the angle in degrees, and the new name of each class."""


def _transformations(split: Split, num_classes: int) -> tuple[list[Kind], np.ndarray, np.ndarray]:
    """List the distinct transformations, the identity first, and the index of each client's transformation.

    Returns:
        The transformations; their index for each client's training and validation samples, int64 [m]; and that for its
        test samples, int64 [m].
    """
    identity: Kind = (0.0, tuple(range(num_classes)))
    kinds: dict[Kind, int] = {identity: 0}
    test_label_map = split.label_map if split.test_label_map is None else split.test_label_map
    indices = []
    for label_map in (split.label_map, test_label_map):
        kind_of = np.zeros(len(split.train), dtype=np.int64)
        for client in range(len(split.train)):
            angle = 0.0 if split.rotation is None else float(split.rotation[client]) % 360
            names = identity[1] if label_map is None else tuple(int(label) for label in label_map[client])
            kind_of[client] = kinds.setdefault((angle, names), len(kinds))
        indices.append(kind_of)
    return list(kinds), indices[0], indices[1]


def _transformed(images: Tensor, labels: Tensor, keys: np.ndarray, kinds: list[Kind]) -> tuple[Tensor, Tensor]:
    """Return the transformed samples and labels of some keys, ascending; see `materialise`."""
    new_images = images.new_empty((len(keys), *images.shape[1:]))
    new_labels = labels.new_empty((len(keys), *labels.shape[1:]))
    for number, (angle, names) in enumerate(kinds):
        start, end = np.searchsorted(keys, [number * len(labels), (number + 1) * len(labels)])
        indices = torch.from_numpy(keys[start:end] - number * len(labels))
        chosen = images.index_select(0, indices)
        if angle:
            _check_rotation(chosen, angle)
            chosen = rotate(chosen, angle)
        new_images[start:end] = chosen
        unchanged = labels.index_select(0, indices)
        new_labels[start:end] = unchanged if names == tuple(range(len(names))) else torch.tensor(names)[unchanged]
    return new_images, new_labels


def _check_rotation(images: Tensor, angle: float) -> None:
    shape = tuple(images.shape[1:])
    if images.ndim != 4:
        raise UserError(f"data.partition: only images [C, H, W] can be rotated, not inputs of shape {shape}")
    if angle % 180 == 90 and shape[-1] != shape[-2]:
        raise UserError(
            f"data.partition: images of {shape[-2]} x {shape[-1]} pixels change their shape when rotated by {angle:g} "
            f"degrees; use square images or multiples of 180"
        )
