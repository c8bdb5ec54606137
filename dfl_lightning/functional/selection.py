"""The choice of senders by a threshold; `Links.top` and `Links.draw` choose the best and random ones."""

from __future__ import annotations

from torch import Tensor

from dfl_lightning.links import Links

__all__ = ["above_threshold"]


def above_threshold(scores: Tensor, links: Links, threshold: Tensor) -> Tensor:
    """Select the senders whose score reaches the receiver's threshold (AFIND+, arXiv 2407.04460, algorithm 1, line 3).

    Args:
        scores: the receiver's score of each sender, [E]; NaN = unknown, never chosen.
        links: the senders that can be chosen.
        threshold: the least score of a chosen sender, in units of the scores, [n].

    Returns:
        bool [E].

    Examples:
        >>> import torch
        >>> links = Links.from_mask(torch.ones(1, 3, dtype=torch.bool))
        >>> above_threshold(torch.tensor([2.9457, 0.0540, 0.0004]), links, torch.tensor([0.2768]))
        tensor([ True, False, False])
    """
    return scores.double() >= threshold.double()[links.receivers]
