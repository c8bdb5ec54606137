"""AFIND+ (arXiv 2407.04460): who is likely to help, how many to take, and how much each of them counts.

Row i is the receiver, column j the sender; the number of receivers r need not equal the number of senders n. A cosine
that is NaN is unknown: its sender is treated as if it were not there.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from dfl_lightning.functional.blocks import by_row_blocks

__all__ = [
    "adaptive_threshold",
    "boltzmann_weights",
    "entropy_sum",
    "literal_threshold",
    "normalised_entropy",
    "participation_ratio",
    "selection_probabilities",
    "smoothed_loss",
    "updated_probabilities",
]


def selection_probabilities(cosines: Tensor, available: Tensor, nu: float) -> Tensor:
    """How likely each neighbour is to help: a softmax of the similarities (AFIND+ eq. 8).

    Args:
        cosines: similarity of the proxies, [r, n]; NaN = unknown.
        available: the available neighbours B_i, bool [r, n].
        nu: temperature > 0; a small one puts all weight on the most similar neighbour.

    Returns:
        Probabilities p_ij, float64 [r, n]; exactly 0 outside `available`. Rows sum to 1, or to 0 where no neighbour is
        available.

    Example:
        >>> cosines = torch.tensor([[0.9, 0.5, 0.0]])
        >>> selection_probabilities(cosines, torch.ones(1, 3, dtype=torch.bool), nu=0.5)
        tensor([[0.6193, 0.2783, 0.1024]], dtype=torch.float64)
    """

    def rows(cosines: Tensor, available: Tensor) -> Tensor:
        cosines = cosines.double()
        return _softmax(cosines, nu, available & ~cosines.isnan())

    return by_row_blocks(rows, cosines, available)


def participation_ratio(cosines: Tensor, available: Tensor, nu: float) -> Tensor:
    """The probability of eq. 8 in units of the uniform one: n_i * p_ij, where 1 is an average neighbour.

    Probabilities shrink with the number of neighbours while the threshold of eq. 13 does not; the ratio is free of
    the number n_i of available neighbours, so that one threshold serves networks of any size.

    Args:
        cosines: similarity of the proxies, [r, n]; NaN = unknown.
        available: the available neighbours B_i, bool [r, n].
        nu: temperature > 0 of eq. 8.

    Returns:
        Ratios >= 0, float64 [r, n], with mean 1 over the available neighbours; exactly 0 outside them.

    Example:
        >>> cosines = torch.tensor([[0.9, 0.5, 0.0]])
        >>> participation_ratio(cosines, torch.ones(1, 3, dtype=torch.bool), nu=0.1)
        tensor([[2.9457e+00, 5.3952e-02, 3.6353e-04]], dtype=torch.float64)
    """

    def rows(cosines: Tensor, available: Tensor) -> Tensor:
        known = available & ~cosines.isnan()
        return known.sum(1, keepdim=True) * selection_probabilities(cosines, available, nu)

    return by_row_blocks(rows, cosines, available)


def updated_probabilities(previous: Tensor, cosines: Tensor, selected: Tensor, available: Tensor, nu: float) -> Tensor:
    """The probabilities when only the selected neighbours were compared (AFIND+ eq. 9).

    The selected ones share, by a softmax among themselves, whatever the other available neighbours leave of 1.

    Args:
        previous: probabilities of the last round, [r, n].
        cosines: similarity of the proxies, [r, n]; read only where `selected`.
        selected: the selected neighbours C_i, bool [r, n].
        available: the available neighbours B_i, bool [r, n].
        nu: temperature > 0 of eq. 8.

    Returns:
        Probabilities p_ij, float64 [r, n]; everything outside `selected`, and so a row with an empty selection, is as
        in `previous`. If `previous` sums to 1 over `available`, so does the result.

    Example:
        >>> previous = torch.full((1, 4), 0.25)
        >>> cosines = torch.tensor([[0.8, 0.4, 0.0, 0.0]])
        >>> selected = torch.tensor([[True, True, False, False]])
        >>> updated_probabilities(previous, cosines, selected, torch.ones(1, 4, dtype=torch.bool), nu=0.5)
        tensor([[0.3450, 0.1550, 0.2500, 0.2500]], dtype=torch.float64)
    """

    def rows(previous: Tensor, cosines: Tensor, selected: Tensor, available: Tensor) -> Tensor:
        previous, cosines = previous.double(), cosines.double()
        refreshed = selected & ~cosines.isnan()
        others = torch.where(available & ~refreshed, previous, torch.zeros_like(previous)).sum(1, keepdim=True)
        return torch.where(refreshed, _softmax(cosines, nu, refreshed) * (1 - others).clamp(min=0), previous)

    return by_row_blocks(rows, previous, cosines, selected, available)


def normalised_entropy(cosines: Tensor) -> Tensor:
    """How little a similarity tells: g(e) = -e * exp(1) * ln(e) with e = (cos + 1) / 2, clipped below at 1/exp(1).

    The term -e ln(e) of eq. 10 has its maximum 1/exp(1) at e = 1/exp(1) and falls again below, so that opposite
    vectors would count as confident; the clip keeps it non-increasing in the cosine, the factor maps it to [0, 1].

    Args:
        cosines: similarities in [-1, 1], any shape; NaN stays NaN.

    Returns:
        float64, same shape: 0 at cosine 1, 1 at cosine -0.2642 and below.

    Example:
        >>> normalised_entropy(torch.tensor([-1.0, 0.0, 0.5, 0.9, 1.0]))
        tensor([1.0000, 0.9421, 0.5865, 0.1325, 0.0000], dtype=torch.float64)
    """
    e = _refined(cosines).clamp(min=math.exp(-1))
    return (torch.special.entr(e) * math.e).clamp(max=1) + 0.0  # turns the -0 of cosine 1 into 0


def entropy_sum(cosines: Tensor, selected: Tensor) -> Tensor:
    """The uncertainty of each receiver, h_i = -sum over C_i of e ln(e) with e = (cos + 1) / 2 (AFIND+ eq. 10).

    Args:
        cosines: similarity of the proxies, [r, n]; NaN = unknown, left out of the sum.
        selected: the selected neighbours C_i, bool [r, n].

    Returns:
        h_i >= 0 in nats, float64 [r]; 0 for an empty selection.

    Example:
        >>> entropy_sum(torch.tensor([[0.9, 0.5, 0.0]]), torch.ones(1, 3, dtype=torch.bool))
        tensor([0.6111], dtype=torch.float64)
    """

    def rows(cosines: Tensor, selected: Tensor) -> Tensor:
        terms = torch.special.entr(_refined(cosines))
        return torch.where(selected & ~terms.isnan(), terms, torch.zeros_like(terms)).sum(1)

    return by_row_blocks(rows, cosines, selected)


def adaptive_threshold(cosines: Tensor, available: Tensor, tau: float) -> Tensor:
    """The participation threshold theta_i = tau * (mean of `normalised_entropy` over the available neighbours).

    It goes the way of remark 3.3 of AFIND+: the more similar the neighbours, the lower the threshold; it never
    exceeds tau. (Eq. 13 as printed goes the other way: see `literal_threshold`.)

    Args:
        cosines: similarity of the proxies, [r, n]; NaN = unknown, left out of the mean.
        available: the available neighbours B_i, bool [r, n].
        tau: global threshold >= 0; 0 selects all, a very large one none.

    Returns:
        theta_i in [0, tau], in units of `participation_ratio`, float64 [r]; 0 where no neighbour is available.

    Example:
        >>> adaptive_threshold(torch.tensor([[0.9, 0.5, 0.0]]), torch.ones(1, 3, dtype=torch.bool), tau=0.5)
        tensor([0.2768], dtype=torch.float64)
    """

    def rows(cosines: Tensor, available: Tensor) -> Tensor:
        entropy = normalised_entropy(cosines)
        known = available & ~entropy.isnan()
        total = torch.where(known, entropy, torch.zeros_like(entropy)).sum(1)
        return tau * total / known.sum(1).clamp(min=1)

    return by_row_blocks(rows, cosines, available)


def literal_threshold(cosines: Tensor, selected: Tensor, tau: float) -> Tensor:
    """The participation threshold as printed: theta_i = tau * (1 - sigmoid(h_i)) (AFIND+ eq. 10 to 13).

    Args:
        cosines: similarity of the proxies, [r, n].
        selected: the selected neighbours C_i, bool [r, n].
        tau: global threshold >= 0.

    Returns:
        theta_i in (0, tau / 2], in units of `selection_probabilities`, float64 [r]; tau / 2 for an empty selection.

    Example:
        >>> literal_threshold(torch.tensor([[0.9, 0.5, 0.0]]), torch.ones(1, 3, dtype=torch.bool), tau=0.5)
        tensor([0.1759], dtype=torch.float64)
    """
    # 1 - sigmoid(h) written so that no digits are lost when h is large
    return tau * torch.sigmoid(-entropy_sum(cosines, selected))


def smoothed_loss(before: Tensor, after: Tensor, gamma: float) -> Tensor:
    """A sender's loss, smoothed over its local training: (1 - gamma) * after + gamma * before (AFIND+ eq. 15).

    Args:
        before: mean loss before the local training, any shape.
        after: mean loss after it, same shape.
        gamma: share of the loss before, in [0, 1].

    Returns:
        float64, same shape.

    Example:
        >>> smoothed_loss(torch.tensor([2.0]), torch.tensor([1.0]), gamma=0.9)
        tensor([1.9000], dtype=torch.float64)
    """
    return (1 - gamma) * after.double() + gamma * before.double()


def boltzmann_weights(losses: Tensor, votes: Tensor, temperature: float = 1.0) -> Tensor:
    """Aggregation weights from losses: proportional to votes * exp(-loss / T) (AFIND+ eq. 14 and 16).

    Args:
        losses: mean loss of row p as judged by receiver i, [r, P]; read only where there are votes. One that is not
            finite counts as infinite.
        votes: how often row p enters receiver i's sum, [r, P]: bool, or numbers >= 0 where a row stands in for several
            clients or for a part of one.
        temperature: T > 0; a large T tends to plain shares of the votes.

    Returns:
        float64 [r, P]; rows sum to 1; exactly 0 where there are no votes, and zero rows without any. If no loss of a
        row is finite, its weights are the plain shares of the votes.

    Example:
        >>> boltzmann_weights(torch.tensor([[0.5, 1.0, 2.0]]), torch.ones(1, 3, dtype=torch.bool))
        tensor([[0.5465, 0.3315, 0.1220]], dtype=torch.float64)
        >>> boltzmann_weights(torch.tensor([[0.5, 1.0, 2.0]]), torch.tensor([[1, 2, 0]]))
        tensor([[0.4519, 0.5481, 0.0000]], dtype=torch.float64)
    """

    def rows(losses: Tensor, votes: Tensor) -> Tensor:
        losses, votes = losses.double(), votes.double()
        finite = losses.isfinite()
        hopeless = ~(finite & (votes > 0)).any(1, keepdim=True)
        counted = torch.where(finite | hopeless, votes, torch.zeros_like(votes))
        return _softmax(torch.where(finite, -losses, torch.zeros_like(losses)), temperature, counted)

    return by_row_blocks(rows, losses, votes)


def _refined(cosines: Tensor) -> Tensor:
    """The refined similarity e = (cos + 1) / 2, in [0, 1]."""
    return ((cosines.double() + 1) / 2).clamp(0, 1)


def _softmax(values: Tensor, temperature: float, multiplicity: Tensor) -> Tensor:
    """Rows of multiplicity * exp(values / temperature), divided by their sums; zero where multiplicity is 0."""
    if not temperature > 0:
        raise ValueError(f"a temperature must be positive, not {temperature}")
    weights = multiplicity.to(values.dtype)
    masked = torch.where(weights > 0, values, torch.full_like(values, -torch.inf))
    top = masked.amax(1, keepdim=True)
    # the largest is subtracted first, so that neither a tiny temperature nor large values overflow
    shifted = torch.where(weights > 0, (values - top) / temperature, torch.full_like(values, -torch.inf))
    weights = weights * shifted.exp()
    total = weights.sum(1, keepdim=True)
    return weights / torch.where(total > 0, total, torch.ones_like(total))
