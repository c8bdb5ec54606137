"""Samples that are no numbers, found before anybody trains on them."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from dfl_lightning.data.client_data import ClientData
from dfl_lightning.data.source import CHUNK, Source
from dfl_lightning.data.splits.split import Split
from dfl_lightning.utils.errors import UserError

__all__ = ["refuse_what_is_no_number"]


def refuse_what_is_no_number(
    clients: ClientData, split: Split, source: Source, dtype: torch.dtype = torch.float64
) -> None:
    """Refuse NaN and infinity in samples that a client uses; other samples matter to `normalise` only.

    One such pixel among a client's training samples would end its training in every round.

    Args:
        clients: the resident samples.
        split: whose samples in the source they are.
        source: the data set.
        dtype: the type that inputs have in the run: what it does not reach is infinity there.

    Raises:
        UserError: a sample that is not finite, named by client and by its place in the source.
    """
    broken = not_finite(clients.images, dtype)
    if not len(broken):
        _refuse_scale(clients, source)
        return
    what_is_wrong, remedy = "NaN or infinity", ""
    if len(broken) > len(not_finite(clients.images)):
        what_is_wrong = f"NaN, infinity or numbers beyond {torch.finfo(dtype).max:.2g}, which 32 bits do not reach"
        remedy = ", scale them or set trainer.precision: 64-true"
    among = torch.zeros(len(clients.images), dtype=torch.bool)
    among[broken] = True
    for part, what in (("train", "training"), ("val", "validation"), ("test", "test")):
        for client, indices in enumerate(getattr(clients, part)):
            wrong = among[indices]
            if wrong.any():
                item = int(getattr(split, part)[client][int(torch.nonzero(wrong)[0])])
                where = "of the test set " if part == "test" and split.test_official else ""
                raise UserError(
                    f"data {source.name}: {int(wrong.sum())} of the {len(indices)} {what} samples of client {client} "
                    f"hold {what_is_wrong}, the first is item {item} {where}(counted from 0); repair them or leave "
                    f"them out{remedy}"
                )
    if clients.global_test is not None and among[clients.global_test].any():
        count = int(among[clients.global_test].sum())
        raise UserError(
            f"data {source.name}: {count} samples of the global test set hold {what_is_wrong}; repair them or leave "
            f"them out{remedy}"
        )
    _refuse_scale(clients, source)


def _refuse_scale(clients: ClientData, source: Source) -> None:
    if (clients.scale.isfinite() & clients.shift.isfinite()).all():
        return
    broken = not_finite(source.images)
    why = (
        f"item {int(broken[0])} (counted from 0) holds NaN or infinity; repair or remove it"
        if len(broken)
        else ("their squares are beyond what 64 bits hold; scale the samples")
    )
    raise UserError(
        f"data {source.name}: data.normalise takes the mean over all training samples, and {why}, or set "
        "normalise: false"
    )


def not_finite(images: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
    """Which samples hold NaN or infinity in a floating type, int64, ascending; integers never do.

    Args:
        images: [N, ...].
        dtype: the type in which they are used; a value beyond its range counts as infinite.

    Examples:
        >>> not_finite(torch.tensor([[0.0, 1.0], [torch.nan, 0.0], [torch.inf, 0.0]]))
        tensor([1, 2])
    """
    if not images.is_floating_point():
        return torch.empty(0, dtype=torch.long)
    found = []
    for number, chunk in enumerate(images.split(CHUNK)):
        if torch.finfo(dtype).max < torch.finfo(chunk.dtype).max:
            chunk = chunk.to(dtype)
        if bool(chunk.sum().isfinite()):  # makes no copy; one that only overflows is looked into
            continue
        wrong = torch.nonzero(~chunk.flatten(1).isfinite().all(1)).squeeze(1)
        found.append((wrong + number * CHUNK).numpy())
    return torch.from_numpy(np.concatenate(found)) if found else torch.empty(0, dtype=torch.long)
