"""Cosines and distances of all pairs of clients, computed from the Gram matrix of their vectors.

A Gram matrix holds the inner products `gram[i, j] = <x_i, x_j>`; everything here is [m, m], in float64.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["centred_cosines", "cosines_from_gram", "distances_from_gram"]

# A centred squared norm is a difference of numbers as large as the squared norms themselves, so it carries their
# rounding error: about 1e-15 of them after sums in float64, up to 3e-5 after a million terms in float32. Anything below
# these multiples of the mean squared norm may be rounding error alone, whose direction means nothing. In float64 that
# still resolves vectors that differ by 3e-5 of their length, in float32 by 1 %.
_TOLERANCE = {torch.float64: 1e-9}
_TOLERANCE_OF_SHORTER_FLOATS = 1e-4


def cosines_from_gram(gram: Tensor) -> Tensor:
    """Compute the cosine similarity of every pair of vectors (the `sim` of AFIND+, arXiv 2407.04460, eq. 8).

    Args:
        gram: inner products, [m, m].

    Returns:
        Cosines in [-1, 1], float64 [m, m]. A zero vector has cosine 0 with everything, itself included; the diagonal
        of the others is exactly 1. Pairs with a vector that is not finite are NaN.

    Examples:
        >>> vectors = torch.tensor([[3.0, 0.0], [4.0, 3.0], [0.0, 0.0]])
        >>> cosines_from_gram(vectors @ vectors.T)
        tensor([[1.0000, 0.8000, 0.0000],
                [0.8000, 1.0000, 0.0000],
                [0.0000, 0.0000, 0.0000]], dtype=torch.float64)
    """
    gram = gram.double()
    squared = gram.diagonal().clamp(min=0)
    return _normalised(gram, squared[:, None].sqrt() * squared[None, :].sqrt(), squared > 0)


def centred_cosines(gram: Tensor, seen: Tensor) -> Tensor:
    """Compute cosines after each receiver has subtracted the mean of the vectors that it can see.

    Entry (i, j) is the cosine of `x_i - c_i` and `x_j - c_i`, where `c_i` is the mean of x_i and of all x_j with
    `seen[i, j]`. Parts that all clients share (a common start, a common drift) cancel. The result is not symmetric,
    since each receiver has its own centre.

    A centred vector counts as zero, and its cosines are 0, if its squared norm is below 1e-9 of the mean squared norm
    of the vectors that enter c_i: identical clients have cosine exactly 0, not a rounding error's direction. For a
    Gram matrix in a shorter dtype than float64 the limit is 1e-4, so pass it in the dtype in which it was summed.

    Args:
        gram: inner products, [m, m].
        seen: the vectors that receiver i can see, bool [m, m]; i always sees its own.

    Returns:
        Cosines in [-1, 1], float64 [m, m], also for pairs outside `seen`, which the caller should mask. NaN if a vector
        that is not finite takes part; if i does not see it, the other entries of row i are not affected.

    Examples:
        >>> proxies = torch.tensor([[7.0, 1, 0], [7, 0, 1], [6, -1, 0], [5, -1, 1]], dtype=torch.float64)
        >>> all_pairs = torch.ones(4, 4, dtype=torch.bool)
        >>> centred_cosines(proxies @ proxies.T, all_pairs)[0]
        tensor([ 1.0000,  0.4336, -0.6070, -0.8947], dtype=torch.float64)
        >>> cosines_from_gram(proxies @ proxies.T)[0]
        tensor([1.0000, 0.9800, 0.9532, 0.9254], dtype=torch.float64)
    """
    tolerance = _TOLERANCE.get(gram.dtype, _TOLERANCE_OF_SHORTER_FLOATS)
    gram = gram.double()
    broken = ~gram.diagonal().isfinite()
    gram = gram.masked_fill(broken[:, None] | broken[None, :], 0)

    eye = torch.eye(len(gram), dtype=torch.bool, device=gram.device)
    members = (seen | eye).double()
    shares = members / members.sum(1, keepdim=True)
    to_centre = shares @ gram  # [i, j] = <c_i, x_j>
    centre = (shares * to_centre).sum(1)  # [i] = <c_i, c_i>
    squared = gram.diagonal()

    inner = gram - to_centre.diagonal()[:, None] - to_centre + centre[:, None]
    norms = squared[None, :] - 2 * to_centre + centre[:, None]  # [i, j] = |x_j - c_i|^2
    moved = norms > tolerance * (shares @ squared)[:, None]
    norms = norms.clamp(min=0).sqrt()
    cosines = _normalised(inner, norms.diagonal()[:, None] * norms, moved)

    undefined = (members @ broken.double() > 0)[:, None] | broken[None, :]
    return cosines.masked_fill(undefined, torch.nan)


def distances_from_gram(gram: Tensor) -> Tensor:
    """Compute the Euclidean distance of every pair of vectors.

    Args:
        gram: inner products, [m, m].

    Returns:
        Distances in the unit of the vectors, float64 [m, m], exactly 0 on the diagonal.

    Examples:
        >>> vectors = torch.tensor([[0.0, 0.0], [3.0, 4.0]])
        >>> distances_from_gram(vectors @ vectors.T)
        tensor([[0., 5.],
                [5., 0.]], dtype=torch.float64)
    """
    gram = gram.double()
    squared = gram.diagonal()
    return (squared[:, None] + squared[None, :] - 2 * gram).clamp(min=0).sqrt()


def _normalised(inner: Tensor, norms: Tensor, nonzero: Tensor) -> Tensor:
    """Compute the cosines `inner / norms`: 0 if either vector is zero, exactly 1 for a non-zero vector with itself.

    `nonzero` marks vectors that are not zero, [m], or [m, m] if that differs from row to row.
    """
    nonzero = nonzero.expand_as(inner)
    own = nonzero.diagonal()
    zero = ~(own[:, None] & nonzero) & ~norms.isnan()
    cosines = (inner / norms).masked_fill(zero, 0).clamp(-1, 1)
    diagonal = cosines.diagonal()
    diagonal.copy_(torch.where(own & ~diagonal.isnan(), torch.ones_like(diagonal), diagonal))
    return cosines
