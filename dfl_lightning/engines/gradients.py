"""Gradients as objectives see them: a dense tensor for each parameter, zeros where autograd returns None."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def filled(gradient: Tensor | None, like: Tensor) -> Tensor:
    """Return a dense gradient; zeros, marked as missing, if autograd has none since the loss ignores the parameter.

    Args:
        gradient: the parameter's gradient from autograd; may be sparse, as that of an embedding.
        like: the parameter.
    """
    return _missing(like) if gradient is None else gradient.to_dense() if gradient.is_sparse else gradient


def joined(several: Sequence[Tensor]) -> Tensor:
    """Concatenate gradients of groups of clients to [k, *shape]; the result is missing if all of them are."""
    whole = torch.cat(list(several))
    return _missing(whole) if all(map(is_missing, several)) else whole


def is_missing(gradient: Tensor) -> bool:
    """Return True if these are the zeros that `filled` made for a missing gradient, unchanged since.

    Torch's optimizers skip a parameter without a gradient. If they got zeros, weight decay would shrink it, and
    momentum would move it further.
    """
    return getattr(gradient, "is_missing_while", None) == gradient._version


def _missing(like: Tensor) -> Tensor:
    zeros = torch.zeros_like(like)
    zeros.is_missing_while = zeros._version  # type: ignore[attr-defined]
    return zeros
