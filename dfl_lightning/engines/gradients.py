"""Gradients as objectives see them: dense, a tensor for each parameter, also where autograd has none."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def filled(gradient: Tensor | None, like: Tensor) -> Tensor:
    """A gradient of autograd, or zeros where it has none because the loss does not depend on the parameter.

    Args:
        gradient: of the parameter; may be sparse, as that of an embedding.
        like: the parameter.
    """
    return _missing(like) if gradient is None else gradient.to_dense() if gradient.is_sparse else gradient


def joined(several: Sequence[Tensor]) -> Tensor:
    """Gradients of some clients behind those of others, [k, *shape]."""
    whole = torch.cat(list(several))
    return _missing(whole) if all(map(is_missing, several)) else whole


def is_missing(gradient: Tensor) -> bool:
    """Whether these are zeros in the place of a gradient, as they were made.

    Torch's optimizers leave a parameter without a gradient alone. With zeros, weight decay would shrink it, and
    momentum move it on.
    """
    return getattr(gradient, "is_missing_while", None) == gradient._version


def _missing(like: Tensor) -> Tensor:
    zeros = torch.zeros_like(like)
    zeros.is_missing_while = zeros._version  # type: ignore[attr-defined]
    return zeros
