"""PENS (arXiv 2107.08517): which peers were chosen more often than chance would have it.

The paper is *Decentralized federated learning of deep neural networks on non-iid data* (performance-based neighbour
selection). Row i is the receiver, column j the sender.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

__all__ = ["more_often_than_expected"]

Rule = Literal["expected", "all_clients", "one_less", "sent", "panm"]

_ROUNDING = 1e-9  # sums of fractions that should be whole numbers are so close to them


def more_often_than_expected(
    counts: Tensor, expected: Tensor, sent: Tensor, rule: Rule, *, sampled: int, top: int, rounds: int
) -> Tensor:
    """The peers of stage two: those chosen in stage one more often than a bar, which sources put at different heights.

    Args:
        counts: in how many rounds of stage one i chose j, [n, n].
        expected: how often i would have chosen j had it chosen `top` of those in reach at random, [n, n]; with all of
            them in reach in every round, top * rounds / (n - 1).
        sent: in how many of these rounds i sent its model to j, that is j evaluated i, [n, n].
        rule: the bar: `expected`: that number; `all_clients`: top * rounds / n (the paper's text); `one_less`: expected
            - 1 (the authors' code); `sent`: sent * top / sampled (gossipy); `panm`: ceil(rounds (sampled + top) / n)
            (PANM, arXiv 2203.12285, for its comparison).
        sampled: peers evaluated in a round.
        top: peers chosen of these.
        rounds: of stage one.

    Returns:
        bool [n, n]; False on the diagonal.

    Example:
        >>> counts, sent = torch.zeros(2, 5, 5)
        >>> counts[0, 1:], sent[0, 1:] = torch.tensor([5, 1, 0, 3]), torch.tensor([10, 10, 10, 15])
        >>> more_often_than_expected(counts, counts, sent, "sent", sampled=10, top=2, rounds=20)[0]
        tensor([False,  True, False, False, False])
    """
    n = len(counts)
    bars = {
        "expected": expected.double(),
        "all_clients": torch.full((n, n), top * rounds / n, dtype=torch.float64),
        "one_less": expected.double() - 1,
        "sent": sent.double() * top / sampled,
        "panm": torch.full((n, n), -(-rounds * (sampled + top) // n), dtype=torch.float64),
    }
    return (counts.double() > bars[rule] + _ROUNDING) & ~torch.eye(n, dtype=torch.bool)
