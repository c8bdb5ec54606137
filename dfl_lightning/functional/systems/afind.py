"""AFIND+ (arXiv 2407.04460): probabilities of useful neighbours, a threshold for their number, and their weights.

A round of the paper (algorithm 1), and the code of each step:

1. local training on the client's own data                                       (`model.local_epochs`, the objective)
2. each client sends one layer of its model, the proxy, to its neighbours        (`AFIND`, on_compare; `proxy`)
3. cosines of the proxies, and p_ij = softmax(cosines / nu), eq. 7 to 9          (`participation_ratio`; `rule`)
4. a threshold that falls where neighbours are similar, eq. 10 to 13             (`adaptive_threshold`; `threshold.tau`)
5. friends: the neighbours at or above the threshold; they send their models     (`AFIND`, on_select)
6. weights: softmax(-losses / T) of friends and oneself, eq. 14 to 16            (`boltzmann_weights`; `Boltzmann`)
7. the client continues with the weighted average                                (the aggregation, on_mix)

Numbers for links are plain tensors with an entry for each link of a list. A cosine that is NaN is unknown: its sender
is left out.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from dfl_lightning.links import Links

__all__ = [
    "adaptive_threshold",
    "boltzmann_weights",
    "entropy_sum",
    "literal_threshold",
    "nearness",
    "normalised_entropy",
    "participation_ratio",
    "sampled_neighbours",
    "selection_probabilities",
    "smoothed_loss",
    "standardised",
    "updated_probabilities",
]


def nearness(distances: Tensor, links: Links) -> Tensor:
    """Convert distances of proxies (AFIND+ eq. 7) to similarities in [-1, 1], as the other formulas need them.

    The largest distance of a receiver's neighbours becomes -1 and distance 0 becomes 1, so that neighbours are in the
    order of eq. 7 and the unit of the proxies does not matter. If all neighbours are similar, small differences decide.

    Args:
        distances: distances of the senders' proxies from the receiver's, 0 or more, [E]; NaN = unknown.
        links: the neighbours of each receiver.

    Returns:
        1 - 2 * distance / largest, in [-1, 1], float64 [E]; 1 if all distances are 0; NaN stays NaN.

    Examples:
        >>> nearness(torch.tensor([0.5, 2.0, 0.0]), Links.from_mask(torch.ones(1, 3, dtype=torch.bool)))
        tensor([ 0.5000, -1.0000,  1.0000], dtype=torch.float64)
    """
    distances = distances.double()
    largest = links.highest(distances.nan_to_num(nan=-1.0))[links.receivers]
    return 1 - 2 * distances / torch.where(largest > 0, largest, 1.0)


ROUNDING = 1e-12
"""Numbers that differ by less than this share of their mean count as equal, since sums of equal numbers are rounded."""


def selection_probabilities(cosines: Tensor, links: Links, nu: float) -> Tensor:
    """Compute the probability that each neighbour helps: a softmax of the similarities (AFIND+ eq. 8).

    Args:
        cosines: similarity of the proxies, [E]; NaN = unknown.
        links: the available neighbours B_i of each receiver.
        nu: temperature > 0; a small one puts all weight on the most similar neighbour.

    Returns:
        Probabilities p_ij, float64 [E]; exactly 0 if unknown. They sum to 1 for each receiver, or to 0 if no similarity
        is known.

    Examples:
        >>> links = Links.from_mask(torch.ones(1, 3, dtype=torch.bool))  # one receiver, three senders
        >>> selection_probabilities(torch.tensor([0.9, 0.5, 0.0]), links, nu=0.5)
        tensor([0.6193, 0.2783, 0.1024], dtype=torch.float64)
    """
    return links.softmax(cosines, nu, times=~cosines.isnan())


def participation_ratio(cosines: Tensor, links: Links, nu: float) -> Tensor:
    """Compute the probability of eq. 8 in units of the uniform one: n_i * p_ij, where 1 is an average neighbour.

    Probabilities shrink with the number of neighbours while the threshold of eq. 13 does not; the ratio is free of
    the number n_i of available neighbours, so that one threshold serves networks of any size.

    Args:
        cosines: similarity of the proxies, [E]; NaN = unknown.
        links: the available neighbours B_i of each receiver.
        nu: temperature > 0 of eq. 8.

    Returns:
        Ratios >= 0, float64 [E], with mean 1 over the known neighbours of a receiver; exactly 0 if unknown.

    Examples:
        >>> links = Links.from_mask(torch.ones(1, 3, dtype=torch.bool))
        >>> participation_ratio(torch.tensor([0.9, 0.5, 0.0]), links, nu=0.1)
        tensor([2.9457e+00, 5.3952e-02, 3.6353e-04], dtype=torch.float64)
    """
    number = links.sum(~cosines.isnan())
    return number[links.receivers] * selection_probabilities(cosines, links, nu)


def sampled_neighbours(shares: Tensor, uniforms: Tensor, links: Links, k: int | Tensor) -> Tensor:
    """Draw neighbours one after the other, without replacement, with probabilities in proportion to their shares.

    In AFIND+'s text for eq. 8, p_ij is the probability of being sampled. The k largest of
    log(share) - log(-log(uniform)) have this distribution, so that each link needs one random number of its own.

    Args:
        shares: p_ij, or any multiple of it, 0 or more, [E]; 0 and NaN are never drawn.
        uniforms: random numbers in [0, 1), [E].
        links: the available neighbours B_i of each receiver.
        k: number of neighbours to draw, all if there are fewer; or a number for each receiver, long [n].

    Returns:
        Mask of the drawn links, bool [E].

    Examples:
        >>> links = Links.from_mask(torch.ones(1, 3, dtype=torch.bool))
        >>> sampled_neighbours(torch.tensor([2.0, 1.0, 0.0]), torch.tensor([0.5, 0.5, 0.9]), links, k=1)
        tensor([ True, False, False])
    """
    shares = shares.double()
    keys = shares.log() - (-uniforms.double().log()).log()
    return links.top(keys.masked_fill(~(shares > 0), torch.nan), k)


def updated_probabilities(previous: Tensor, cosines: Tensor, selected: Tensor, links: Links, nu: float) -> Tensor:
    """Update the probabilities of the selected neighbours, if only these were compared (AFIND+ eq. 9).

    The selected neighbours share, by a softmax among themselves, 1 minus the probabilities of the other neighbours.

    Args:
        previous: probabilities of the last round, [E].
        cosines: similarity of the proxies, [E]; read only where `selected`.
        selected: mask of the links to the selected neighbours C_i, bool [E].
        links: the available neighbours B_i of each receiver.
        nu: temperature > 0 of eq. 8.

    Returns:
        Probabilities p_ij, float64 [E]; outside of `selected` they are those of `previous`. If `previous` sums to 1 for
        a receiver, so does the result.

    Examples:
        >>> links = Links.from_mask(torch.ones(1, 4, dtype=torch.bool))
        >>> previous, cosines = torch.full((4,), 0.25), torch.tensor([0.8, 0.4, 0.0, 0.0])
        >>> updated_probabilities(previous, cosines, torch.tensor([True, True, False, False]), links, nu=0.5)
        tensor([0.3450, 0.1550, 0.2500, 0.2500], dtype=torch.float64)
    """
    previous = previous.double()
    refreshed = selected & ~cosines.isnan()
    others = links.sum(previous.masked_fill(refreshed, 0))
    shared = (1 - others).clamp(min=0)[links.receivers]
    return torch.where(refreshed, links.softmax(cosines, nu, times=refreshed) * shared, previous)


def normalised_entropy(cosines: Tensor) -> Tensor:
    """Compute the uncertainty of a similarity: g(e) = -e * exp(1) * ln(e), e = (cos + 1) / 2, at least 1/exp(1).

    The term -e ln(e) of eq. 10 has its maximum 1/exp(1) at e = 1/exp(1) and decreases again below it, so that opposite
    vectors would count as certain. The clip keeps g non-increasing in the cosine, and the factor maps it to [0, 1].

    Args:
        cosines: similarities in [-1, 1], any shape; NaN stays NaN.

    Returns:
        float64, same shape: 0 at cosine 1, 1 at cosine -0.2642 and below.

    Examples:
        >>> normalised_entropy(torch.tensor([-1.0, 0.0, 0.5, 0.9, 1.0]))
        tensor([1.0000, 0.9421, 0.5865, 0.1325, 0.0000], dtype=torch.float64)
    """
    e = _refined(cosines).clamp(min=math.exp(-1))
    return (torch.special.entr(e) * math.e).clamp(max=1) + 0.0  # turns the -0 of cosine 1 into 0


def entropy_sum(cosines: Tensor, links: Links) -> Tensor:
    """Compute the uncertainty of each receiver, h_i = -sum over C_i of e ln(e) with e = (cos + 1) / 2 (AFIND+ eq. 10).

    Args:
        cosines: similarity of the proxies, [E]; NaN = unknown, left out of the sum.
        links: the selected neighbours C_i of each receiver.

    Returns:
        h_i >= 0 in nats, float64 [n]; 0 for an empty selection.

    Examples:
        >>> entropy_sum(torch.tensor([0.9, 0.5, 0.0]), Links.from_mask(torch.ones(1, 3, dtype=torch.bool)))
        tensor([0.6111], dtype=torch.float64)
    """
    return links.sum(torch.special.entr(_refined(cosines)).masked_fill(cosines.isnan(), 0))


def adaptive_threshold(cosines: Tensor, links: Links, tau: float) -> Tensor:
    """Compute the participation threshold theta_i = tau * (mean of `normalised_entropy` over the available neighbours).

    As in remark 3.3 of AFIND+, the threshold is lower for more similar neighbours; it never exceeds tau. (Eq. 13 as
    printed has the opposite effect: see `literal_threshold`.)

    Args:
        cosines: similarity of the proxies, [E]; NaN = unknown, left out of the mean.
        links: the available neighbours B_i of each receiver.
        tau: global threshold >= 0; 0 selects all, a very large one none.

    Returns:
        theta_i in [0, tau], in units of `participation_ratio`, float64 [n]; 0 if no similarity is known.

    Examples:
        >>> links = Links.from_mask(torch.ones(1, 3, dtype=torch.bool))
        >>> adaptive_threshold(torch.tensor([0.9, 0.5, 0.0]), links, tau=0.5)
        tensor([0.2768], dtype=torch.float64)
    """
    unknown = cosines.isnan()
    total = links.sum(normalised_entropy(cosines).masked_fill(unknown, 0))
    return tau * total / links.sum(~unknown).clamp(min=1)


def standardised(values: Tensor, links: Links) -> Tensor:
    """Standardise each receiver's number by mean and standard deviation of its own and its neighbours' numbers.

    This is one reading of "normalise H^t" before the sigmoid of AFIND+ eq. 11. In a complete graph it is over all
    clients.

    Args:
        values: a number for each node, [n].
        links: the neighbours whose numbers each receiver knows, without itself.

    Returns:
        float64 [n]; 0 if all of these numbers are equal.

    Examples:
        >>> standardised(torch.tensor([1.0, 2.0, 3.0]), Links.complete(3))
        tensor([-1.2247,  0.0000,  1.2247], dtype=torch.float64)
    """
    values = values.double()
    number = links.count + 1
    mean = (values + links.sum(values[links.senders])) / number
    apart = (values[links.senders] - mean[links.receivers]).square()
    deviation = (((values - mean).square() + links.sum(apart)) / number).sqrt()
    differ = deviation > ROUNDING * mean.abs()
    return torch.where(differ, (values - mean) / torch.where(differ, deviation, 1.0), 0.0)


def literal_threshold(cosines: Tensor, links: Links, tau: float, neighbours: Links | None = None) -> Tensor:
    """Compute the participation threshold as printed: theta_i = tau * (1 - sigmoid(h_i)) (AFIND+ eq. 10 to 13).

    Args:
        cosines: similarity of the proxies, [E]; NaN = unknown, left out.
        links: the selected neighbours C_i of each receiver.
        tau: global threshold >= 0.
        neighbours: links over which h is standardised before the sigmoid, see `standardised`; None: h is used as it is.

    Returns:
        theta_i in units of `selection_probabilities`, float64 [n]: in (0, tau / 2], and tau / 2 for an empty selection;
        with standardised h in (0, tau).

    Examples:
        >>> links = Links.from_mask(torch.ones(1, 3, dtype=torch.bool))
        >>> literal_threshold(torch.tensor([0.9, 0.5, 0.0]), links, tau=0.5)
        tensor([0.1759], dtype=torch.float64)
    """
    h = entropy_sum(cosines, links)
    # 1 - sigmoid(h) written so that no digits are lost when h is large
    return tau * torch.sigmoid(-(h if neighbours is None else standardised(h, neighbours)))


def smoothed_loss(before: Tensor, after: Tensor, gamma: float) -> Tensor:
    """Compute a sender's loss, smoothed over its local training: (1 - gamma) * after + gamma * before (AFIND+ eq. 15).

    Args:
        before: mean loss before the local training, any shape.
        after: mean loss after it, same shape.
        gamma: share of the loss before, in [0, 1].

    Returns:
        float64, same shape.

    Examples:
        >>> smoothed_loss(torch.tensor([2.0]), torch.tensor([1.0]), gamma=0.9)
        tensor([1.9000], dtype=torch.float64)
    """
    return (1 - gamma) * after.double() + gamma * before.double()


def boltzmann_weights(losses: Tensor, votes: Tensor, voters: Links, temperature: float = 1.0) -> Tensor:
    """Compute aggregation weights from losses: proportional to votes * exp(-loss / T) (AFIND+ eq. 14 and 16).

    Args:
        losses: mean loss of the row for the receiver, [E]; read only for rows with votes. A loss that is not finite
            counts as infinite.
        votes: number of votes of the row, [E]: bool, or numbers >= 0 if a row replaces several clients or a part of
            one.
        voters: receivers and the rows that they may mix.
        temperature: T > 0; a large T tends to plain shares of the votes.

    Returns:
        float64 [E]; they sum to 1 for each receiver, and are exactly 0 without votes. If no loss of a receiver is
        finite, its weights are the plain shares of the votes.

    Examples:
        >>> losses, voters = torch.tensor([0.5, 1.0, 2.0]), Links.from_mask(torch.ones(1, 3, dtype=torch.bool))
        >>> boltzmann_weights(losses, torch.ones(3), voters)
        tensor([0.5465, 0.3315, 0.1220], dtype=torch.float64)
        >>> boltzmann_weights(losses, torch.tensor([1, 2, 0]), voters)
        tensor([0.4519, 0.5481, 0.0000], dtype=torch.float64)
    """
    losses, votes = losses.double(), votes.double()
    finite = losses.isfinite()
    hopeless = ~voters.any(finite & (votes > 0))
    counted = torch.where(finite | hopeless[voters.receivers], votes, 0)
    return voters.softmax(torch.where(finite, -losses, 0), temperature, times=counted)


def _refined(cosines: Tensor) -> Tensor:
    """Compute the refined similarity e = (cos + 1) / 2, in [0, 1]."""
    return ((cosines.double() + 1) / 2).clamp(0, 1)
