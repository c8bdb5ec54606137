"""PENS (arXiv 2107.08517): peers that were chosen more often than expected at random.

The paper is *Decentralized federated learning of deep neural networks on non-iid data* (performance-based neighbour
selection). Its round, and the code of each step:

1. local training                                                                (the objective)
2. stage one: n_s random peers send their models                                 (`PENS`, on_propose; `sampled`)
3. the m with the lowest loss on the client's training data are averaged         (`PENS`, on_select; `top`)
4. they are counted, round by round                                              (`PENS`, on_round_end)
5. after stage one: peers chosen more often than expected become neighbours      (`more_often_than_expected`; `rule`)
6. stage two: gossip with k random neighbours                                    (`PENS`, on_propose; `k`)
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor

__all__ = ["more_often_than_expected"]

Rule = Literal["expected", "all_clients", "one_less", "sent", "panm"]

_ROUNDING = 1e-9  # bound of the rounding errors of sums of fractions


def more_often_than_expected(
    counts: Tensor, expected: Tensor, sent: Tensor, rule: Rule, *, nodes: int, sampled: int, top: int, rounds: int
) -> Tensor:
    """Return the peers of stage two: those chosen in stage one more often than a limit, which differs by source.

    Args:
        counts: number of rounds of stage one in which the receiver chose the sender of a link, [E].
        expected: expected number of such rounds if it had chosen `top` of the clients in reach at random, [E]; with all
            clients in reach in each round, top * rounds / (n - 1).
        sent: number of these rounds in which the sender evaluated the receiver's model, [E].
        rule: the limit. `expected`: the argument of that name; `all_clients`: top * rounds / n (the paper's text);
            `one_less`: expected - 1 (the authors' code); `sent`: sent * top / sampled (gossipy); `panm`:
            ceil(rounds (sampled + top) / n) (PANM, arXiv 2203.12285, for its comparison).
        nodes: n, the number of clients.
        sampled: number of clients evaluated in a round.
        top: number of these that are chosen.
        rounds: number of rounds of stage one.

    Returns:
        Mask of the peers, bool [E].

    Examples:
        >>> import torch
        >>> counts, sent = torch.tensor([5, 1, 0, 3]), torch.tensor([10, 10, 10, 15])
        >>> more_often_than_expected(counts, counts, sent, "sent", nodes=5, sampled=10, top=2, rounds=20)
        tensor([ True, False, False, False])
    """
    limits: dict[str, Tensor | float] = {
        "expected": expected.double(),
        "all_clients": top * rounds / nodes,
        "one_less": expected.double() - 1,
        "sent": sent.double() * top / sampled,
        "panm": -(-rounds * (sampled + top) // nodes),
    }
    return counts.double() > limits[rule] + _ROUNDING
