"""The tensors that an engine trains from: the samples of all clients, and the indices of each client's samples."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor

from dfl_lightning.data.augment import Augment
from dfl_lightning.data.parts import Parts
from dfl_lightning.data.splits.index_lists import IndexLists

__all__ = ["ClientData"]


def target_type(targets: Tensor, dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of targets in a batch: that of the inputs for numbers and bool labels, otherwise their own.

    Args:
        targets: the stored targets.
        dtype: floating dtype of a batch's inputs.
    """
    return dtype if targets.is_floating_point() or targets.dtype == torch.bool else targets.dtype


Affine = tuple[Tensor | None, Tensor | None]


@dataclass(eq=False)
class ClientData:
    """The samples of all clients on one device, from which a batch is gathered by indices.

    The indices of each client's samples stay on the CPU, where batches are drawn.

    Attributes:
        images: inputs of all samples, uint8 or float [N, ...], after the rotations of clients.
        labels: targets of all samples, [N, ...]: classes, int64 [N], after the label maps of clients, floating-point
            numbers of a regression, [N, d], or labels, bool [N, L].
        train: indices of each client's training samples, int64; any sequence of m tensors becomes `IndexLists`.
        val: indices of each client's validation samples; empty tensors if none are held out.
        test: indices of each client's test samples.
        global_test: indices of the test set of a global model, or None.
        clusters: ground-truth cluster of each client as known from the partition, int64 [m], or None.
        num_classes: number of classes C; 0 if the targets are not classes.
        scale: factor of inputs; a network's input is images * scale + shift. It broadcasts over a sample.
        shift: summand of inputs; see `scale`.
        augment: augmentation of a float batch [B, C, H, W] in training, before `scale` and `shift`; or None.
        adversaries: clients whose training and validation labels were falsified (`FlippedLabels`), bool [m]; None if
            the partition does not do that.
        target_scale: scale of each column of standardised targets, float64 [d]: a target times its scale, plus its
            shift, is in the original unit; None: targets are in the original unit.
        target_shift: shift of each column of standardised targets; see `target_scale`.
        categories: number of categories in each of the first columns of inputs; see `Source`.
        parts: the tensors that a row of `images` consists of; see `Source`.
    """

    images: Tensor
    labels: Tensor
    train: IndexLists
    val: IndexLists
    test: IndexLists
    global_test: Tensor | None
    clusters: Tensor | None
    num_classes: int
    scale: Tensor
    shift: Tensor
    augment: Augment | None = None
    adversaries: Tensor | None = None
    target_scale: Tensor | None = None
    target_shift: Tensor | None = None
    categories: tuple[int, ...] = ()
    parts: Parts | None = None
    _affine: dict[torch.dtype, Affine] = field(default_factory=dict, init=False, repr=False)

    def __setattr__(self, name: str, value: object) -> None:
        if name in ("train", "val", "test") and not isinstance(value, IndexLists):
            value = IndexLists(cast("Sequence[Tensor]", value))
        object.__setattr__(self, name, value)

    @property
    def num_clients(self) -> int:
        """Number of clients m."""
        return len(self.train)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one input of the network, without the batch dimension."""
        return tuple(self.images.shape[1:])

    def sizes(self, split: str) -> Tensor:
        """Count the samples of each client in `train`, `val` or `test`, int64 [m], on the CPU."""
        indices: IndexLists = getattr(self, split)
        return indices.counts

    def batch(
        self,
        indices: Tensor,
        dtype: torch.dtype = torch.float32,
        draws: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of the samples at `indices`.

        Args:
            indices: int64 [B], or [k, B] for the batches of k clients, on the CPU or on the device of the samples.
            dtype: floating dtype of the inputs, and of targets that are floating-point numbers or bool labels.
            draws: random numbers of the augmentation for each sample, from its `draw`, [*indices.shape, d]; None means
                evaluation, without augmentation.

        Returns:
            Inputs [B, ...] and targets [B, ...], or [k, B, ...] each; classes are int64 [B], or [k, B].
        """
        flat = indices.reshape(-1).to(self.images.device)
        x = self.images.index_select(0, flat).to(dtype)
        if draws is not None and self.augment is not None:
            x = self.augment.apply(x, draws.flatten(0, -2).to(x.device))
        scale, shift = self._affine_in(dtype)
        if scale is not None:  # two steps are faster, as torch.addcmul is several times slower with two scalars
            x = x * scale  # this is not in place, as an augmentation may return a tensor that it keeps
        if shift is not None:
            x = x + shift
        y = self.labels.index_select(0, flat)
        y = y.to(target_type(y, dtype))
        return x.view(*indices.shape, *self.input_shape), y.view(*indices.shape, *y.shape[1:])

    def to(self, device: torch.device | str) -> ClientData:
        """Return the data with samples and labels on another device; nothing is copied if they are already there."""
        return dataclasses.replace(
            self,
            images=self.images.to(device),
            labels=self.labels.to(device),
            scale=self.scale.to(device),
            shift=self.shift.to(device),
        )

    def _affine_in(self, dtype: torch.dtype) -> Affine:
        """Return scale and shift in a dtype; None for one that would change nothing."""
        # They are cached, as a conversion for each batch would launch a kernel, and reading them waits for the device.
        if dtype not in self._affine:
            scale, shift = self.scale.to(dtype), self.shift.to(dtype)
            self._affine[dtype] = (
                None if bool((scale == 1).all()) else scale,
                None if bool((shift == 0).all()) else shift,
            )
        return self._affine[dtype]
