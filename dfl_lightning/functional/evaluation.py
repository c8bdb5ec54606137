"""Measures of a run: precision and recall of neighbours, accuracy of stand-ins, and the accuracies of papers.

NaN stands for an accuracy that does not exist (a client without test images) and is left out of every mean.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dfl_lightning.links import Links

__all__ = ["accuracy_summary", "friend_accuracy", "neighbour_precision_recall", "worst_decile_mean"]


def neighbour_precision_recall(selected: Links, clusters: Tensor, reachable: Links) -> tuple[float, float]:
    """How well the selected neighbours agree with the hidden clusters.

    Args:
        selected: whom each receiver selected.
        clusters: the cluster of each client, long [n].
        reachable: whom it can reach.

    Returns:
        Precision, the share of the selected that are in the receiver's own cluster (mean over the receivers that
        selected a client), and recall, the share of the reachable members of that cluster that are selected (mean over
        the receivers that can reach one), both in [0, 1]. NaN where there is no such receiver.

    Examples:
        >>> clusters = torch.tensor([0, 0, 1])
        >>> selected = Links.of(torch.tensor([0, 0, 1]), torch.tensor([1, 2, 0]), nodes=3)
        >>> neighbour_precision_recall(selected, clusters, Links.complete(3))
        (0.75, 1.0)
    """
    selected = selected.keep(selected.receivers != selected.senders)
    oneself = Links.loops(torch.ones(len(clusters), dtype=torch.bool)).within(reachable)
    found, to_find = selected.alike(clusters), reachable.count_alike(clusters) - oneself.long()
    return _mean_share(found.count, selected.count), _mean_share(found.both(reachable).count, to_find)


def friend_accuracy(friends: Tensor, clusters: Tensor, clients: Tensor) -> float:
    """How often a client that dropped out is replaced by one of its own cluster.

    Args:
        friends: who stood in, of each case, long [E]; -1 = nobody, which counts as wrong.
        clusters: the cluster of each client, long [m].
        clients: who had dropped out, of each case, long [E].

    Returns:
        Share of the cases, in [0, 1]; NaN if there is none.

    Examples:
        >>> friend_accuracy(torch.tensor([1, 2]), torch.tensor([0, 0, 1]), clients=torch.tensor([0, 1]))
        0.5
    """
    return _mean(((friends >= 0) & (clusters[friends.clamp(min=0)] == clusters[clients])).double())


def worst_decile_mean(values: Tensor) -> float:
    """The mean over the worst tenth of the clients, rounded up to whole clients.

    Args:
        values: one number per client, higher is better, [m].

    Returns:
        Mean of the ceil(m / 10) lowest values, in their unit; NaN without any.

    Examples:
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

    Examples:
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
    """The mean of part / whole, long [n] each, over the receivers where `whole` is not 0."""
    return _mean(part.double() / whole.double())


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
