"""The tensors an engine trains from: all samples in one place, and who may use which."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor

from dfl_lightning.data.augment import Augment
from dfl_lightning.data.splits.index_lists import IndexLists

__all__ = ["ClientData"]


def target_type(targets: Tensor, dtype: torch.dtype) -> torch.dtype:
    """Return the type that targets have in a batch: numbers, and labels as 0 and 1, that of the inputs; others theirs.

    Args:
        targets: as they are stored.
        dtype: floating type of a batch's inputs.
    """
    return dtype if targets.is_floating_point() or targets.dtype == torch.bool else targets.dtype


Affine = tuple[Tensor | None, Tensor | None]


@dataclass(eq=False)
class ClientData:
    """Samples of all clients, resident on one device; a batch is a gather by index.

    What says who may use which sample stays on the CPU: batches are put together there.

    Attributes:
        images: all samples' inputs, uint8 or float [N, ...]; a client's rotation is already applied.
        labels: their targets, [N, ...]: classes, int64 [N], to which a client's label map is already applied, or what
            else is to be predicted: floating-point numbers of a regression, [N, d], or labels that hold, bool [N, L].
        train: per client the indices of its training samples, int64; any sequence of m tensors becomes `IndexLists`.
        val: the same for validation, empty tensors where nothing is held out.
        test: the same for the test.
        global_test: indices of the test set of a global model, or None.
        clusters: ground-truth cluster of each client as known from the partition, int64 [m], or None.
        num_classes: number of classes C; 0 where the targets are no classes.
        scale: a network's input is images * scale + shift; broadcastable over a sample.
        shift: see `scale`.
        augment: changes a float batch [B, C, H, W] in training, before `scale` and `shift`; or None.
        adversaries: clients whose training and validation labels were falsified (`FlippedLabels`), bool [m]; None where
            the partition does not do that.
        target_scale: of each column of standardised targets, float64 [d]: a target times its scale, plus its shift, is
            in the original unit; None: they are in it.
        target_shift: see `target_scale`.
        categories: see `Source`.
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
        found: IndexLists = getattr(self, split)
        return found.counts

    def batch(
        self,
        indices: Tensor,
        dtype: torch.dtype = torch.float32,
        draws: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of the samples at `indices`.

        Args:
            indices: int64 [B], or [k, B] for the batches of k clients, on the CPU or on the device of the samples.
            dtype: floating type of the inputs, and of targets that are floating-point numbers or labels, 0 or 1.
            draws: of the augmentation, what its `draw` gives for each sample, [*indices.shape, d]; None means
                evaluation, without augmentation.

        Returns:
            Inputs [B, ...] and targets [B, ...], or [k, B, ...] each; classes are int64 [B], or [k, B].
        """
        flat = indices.reshape(-1).to(self.images.device)
        x = self.images.index_select(0, flat).to(dtype)
        if draws is not None and self.augment is not None:
            x = self.augment.apply(x, draws.flatten(0, -2).to(x.device))
        scale, shift = self._affine_in(dtype)
        if scale is not None:  # in two steps: torch.addcmul is several times slower with two numbers
            x = x * scale  # not in place: an augmentation may hand out a tensor that it keeps
        if shift is not None:
            x = x + shift
        y = self.labels.index_select(0, flat)
        y = y.to(target_type(y, dtype))
        return x.view(*indices.shape, *self.input_shape), y.view(*indices.shape, *y.shape[1:])

    def to(self, device: torch.device | str) -> ClientData:
        """Return the same with samples and labels on another device; nothing is copied where they are there already."""
        return dataclasses.replace(
            self,
            images=self.images.to(device),
            labels=self.labels.to(device),
            scale=self.scale.to(device),
            shift=self.shift.to(device),
        )

    def _affine_in(self, dtype: torch.dtype) -> Affine:
        """Scale and shift, None where they would change nothing."""
        # Kept, because a conversion a batch is a kernel launch a batch, and a look at the numbers waits for the device.
        if dtype not in self._affine:
            scale, shift = self.scale.to(dtype), self.shift.to(dtype)
            self._affine[dtype] = (
                None if bool((scale == 1).all()) else scale,
                None if bool((shift == 0).all()) else shift,
            )
        return self._affine[dtype]
