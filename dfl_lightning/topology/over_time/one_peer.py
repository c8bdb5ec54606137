"""The one-peer exponential graph (Ying et al. 2021, arXiv 2110.13363)."""

from __future__ import annotations

import torch

from dfl_lightning.links import Links


def one_peer_rounds(clients: int) -> int:
    """Return the number of rounds after which the graphs repeat, ceil(log2 m), at least 1.

    Args:
        clients: number of clients m.

    Examples:
        >>> [one_peer_rounds(m) for m in (1, 2, 3, 8, 9)]
        [1, 1, 2, 3, 4]
    """
    return max(1, (clients - 1).bit_length())


def one_peer_links(clients: int, number: int) -> Links:
    """Return the links of round t, in which client i receives only from client i + 2^t modulo m.

    With equal weights for both models, the product of the mixing matrices of ceil(log2 m) such rounds has all entries
    1 / m if m is a power of two (lemma 1 of the paper).

    Args:
        clients: number of clients m.
        number: t, from 0 to `one_peer_rounds(clients)` - 1.

    Examples:
        >>> one_peer_links(5, 1).senders.tolist()
        [2, 3, 4, 0, 1]
    """
    if clients == 1:
        return Links.empty(1)
    receivers = torch.arange(clients)
    return Links(receivers, (receivers + 2**number) % clients, clients)
