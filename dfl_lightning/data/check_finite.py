"""Checks of samples for NaN and infinity, before clients train on them."""

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
    """Check the samples that clients use for NaN and infinity; other samples only matter to `normalise`.

    One such value in a client's training samples would end its training in every round.

    Args:
        clients: the resident samples.
        split: the samples of each client in the source.
        source: the data set.
        dtype: the type of inputs in the run; values beyond its range count as infinite.

    Raises:
        UserError: a sample is not finite; the message names the client and the sample's index in the source.
    """
    broken = not_finite(clients.images, dtype)
    if not len(broken):
        _check_scale(clients, source)
        return
    problem, remedy = "NaN or infinity", ""
    if len(broken) > len(not_finite(clients.images)):
        problem = f"NaN, infinity or numbers beyond {torch.finfo(dtype).max:.2g}, which 32 bits do not reach"
        remedy = ", scale them or set trainer.precision: 64-true"
    is_broken = torch.zeros(len(clients.images), dtype=torch.bool)
    is_broken[broken] = True
    for part, kind in (("train", "training"), ("val", "validation"), ("test", "test")):
        for client, indices in enumerate(getattr(clients, part)):
            wrong = is_broken[indices]
            if wrong.any():
                item = int(getattr(split, part)[client][int(torch.nonzero(wrong)[0])])
                where = "of the test set " if part == "test" and split.test_official else ""
                raise UserError(
                    f"data {source.name}: {int(wrong.sum())} of the {len(indices)} {kind} samples of client {client} "
                    f"hold {problem}, the first is item {item} {where}(counted from 0); repair them or leave "
                    f"them out{remedy}"
                )
    if clients.global_test is not None and is_broken[clients.global_test].any():
        count = int(is_broken[clients.global_test].sum())
        raise UserError(
            f"data {source.name}: {count} samples of the global test set hold {problem}; repair them or leave "
            f"them out{remedy}"
        )
    _check_scale(clients, source)


def _check_scale(clients: ClientData, source: Source) -> None:
    """Raise if the mean and the standard deviation of `normalise` are not finite."""
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
    """Return the indices of samples with NaN or infinity in a floating type, int64, ascending; none for integers.

    Args:
        images: inputs, [N, ...].
        dtype: the type in which they are used; a value beyond its range counts as infinite.

    Examples:
        >>> not_finite(torch.tensor([[0.0, 1.0], [torch.nan, 0.0], [torch.inf, 0.0]]))
        tensor([1, 2])
    """
    if not images.is_floating_point():
        return torch.empty(0, dtype=torch.long)
    indices = []
    for number, chunk in enumerate(images.split(CHUNK)):
        if torch.finfo(dtype).max < torch.finfo(chunk.dtype).max:
            chunk = chunk.to(dtype)
        if bool(chunk.sum().isfinite()):  # the sum needs no copy; if it only overflows, the test below finds no sample
            continue
        wrong = torch.nonzero(~chunk.flatten(1).isfinite().all(1)).squeeze(1)
        indices.append((wrong + number * CHUNK).numpy())
    return torch.from_numpy(np.concatenate(indices)) if indices else torch.empty(0, dtype=torch.long)
