"""Measures of a run: precision and recall of neighbours, accuracy of stand-ins, and the accuracies of papers.

NaN stands for an accuracy that does not exist (a client without test images) and is left out of every mean.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["accuracy_summary", "friend_accuracy", "neighbour_precision_recall", "worst_decile_mean"]


def neighbour_precision_recall(selected: Tensor, clusters: Tensor, reachable: Tensor) -> tuple[float, float]:
    """How well the selected neighbours agree with the hidden clusters.

    Args:
        selected: the selection, receiver by sender, bool [n, n].
        clusters: the cluster of each client, long [n].
        reachable: the links, receiver by sender, bool [n, n].

    Returns:
        Precision, the share of the selected that are in the receiver's own cluster (mean over the receivers that
        selected a client), and recall, the share of the reachable members of that cluster that are selected (mean over
        the receivers that can reach one), both in [0, 1]. NaN where there is no such receiver.

    Example:
        >>> clusters = torch.tensor([0, 0, 1])
        >>> selected = torch.tensor([[False, True, True], [True, False, False], [False, False, False]])
        >>> neighbour_precision_recall(selected, clusters, ~torch.eye(3, dtype=torch.bool))
        (0.75, 1.0)
    """
    others = ~torch.eye(len(clusters), dtype=torch.bool, device=clusters.device)
    selected = selected & others
    fellows = (clusters[:, None] == clusters[None, :]) & others
    return _mean_share(selected & fellows, selected), _mean_share(selected & fellows & reachable, fellows & reachable)


def friend_accuracy(friends: Tensor, clusters: Tensor, dropped: Tensor) -> float:
    """How often a client that dropped out is replaced by one of its own cluster.

    Args:
        friends: the stand-in of each client, long [..., m]; -1 = none, which counts as wrong.
        clusters: the cluster of each client, long [m].
        dropped: who dropped out, bool [..., m].

    Returns:
        Share of the dropped clients, in [0, 1]; NaN if no client dropped out.

    Example:
        >>> friend_accuracy(torch.tensor([1, 2, -1]), torch.tensor([0, 0, 1]), torch.tensor([True, True, False]))
        0.5
    """
    right = (friends >= 0) & (clusters[friends.clamp(min=0)] == clusters)
    return _mean(right[dropped].double())


def worst_decile_mean(values: Tensor) -> float:
    """The mean over the worst tenth of the clients, rounded up to whole clients.

    Args:
        values: one number per client, higher is better, [m].

    Returns:
        Mean of the ceil(m / 10) lowest values, in their unit; NaN without any.

    Example:
        >>> worst_decile_mean(torch.tensor([0.9, 0.1, 0.8, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.3]))
        0.2...
    """
    values = values.double()
    values = values[~values.isnan()]
    return _mean(values.sort().values[: -(-len(values) // 10)])


def accuracy_summary(history: Tensor, validation: Tensor | None = None) -> dict[str, float | None]:
    """The four numbers that papers call "the accuracy" of a run.

    Args:
        history: test accuracy at every evaluation, [evaluations, clients].
        validation: validation accuracy at the same evaluations, [evaluations, clients], if there is any.

    Returns:
        Means over clients, in the unit of `history`: `acc_last` at the last evaluation; `acc_best_round` at the
        evaluation with the best mean; `acc_best_per_client` of each client's own best (an upper bound: it looks at the
        test images); `acc_best_val` at each client's best validation accuracy, the latest among equals, or None
        without validation.

    Example:
        >>> history = torch.tensor([[0.5, 0.25], [0.25, 0.75], [0.5, 0.25]])
        >>> accuracy_summary(history, validation=torch.tensor([[0.5, 0.5], [0.5, 0.25], [0.25, 0.5]]))
        {'acc_last': 0.375, 'acc_best_round': 0.5, 'acc_best_per_client': 0.625, 'acc_best_val': 0.25}
    """
    if len(history) == 0:
        raise ValueError("there is no evaluation to summarise")
    history = history.double()
    rounds = torch.tensor([_mean(row) for row in history], dtype=torch.float64)
    chosen = None if validation is None else _at_best_validation(history, validation.double())
    return {
        "acc_last": float(rounds[-1]),
        "acc_best_round": float(_best(rounds)),
        "acc_best_per_client": _mean(_best(history)),
        "acc_best_val": None if chosen is None else _mean(chosen),
    }


def _mean(values: Tensor) -> float:
    """The mean of what is not NaN; NaN of nothing."""
    return float(values.nanmean())


def _mean_share(part: Tensor, whole: Tensor) -> float:
    """The mean share of `part` in `whole`, over the rows where `whole` is not empty."""
    return _mean(part.sum(1).double() / whole.sum(1).double())


def _best(values: Tensor) -> Tensor:
    """The maximum over the first dimension of what is not NaN."""
    best = torch.where(values.isnan(), torch.full_like(values, -torch.inf), values).amax(0)
    return torch.where(values.isnan().all(0), torch.full_like(best, torch.nan), best)


def _at_best_validation(history: Tensor, validation: Tensor) -> Tensor:
    """Each client's value in `history` where its validation is best, the latest among equals; NaN without any."""
    comparable = torch.where(validation.isnan(), torch.full_like(validation, -torch.inf), validation)
    latest = len(validation) - 1 - comparable.flip(0).argmax(0)
    chosen = history.gather(0, latest[None, :])[0]
    return torch.where(validation.isnan().all(0), torch.full_like(chosen, torch.nan), chosen)
