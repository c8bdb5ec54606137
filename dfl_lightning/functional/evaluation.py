"""Measures of a run: precision and recall of neighbours, accuracy of substitutes, and the accuracies of papers.

NaN stands for a number that does not exist, for one of three reasons. A client without test data has no loss either,
and is left out of all means. A number is undefined if the loss is finite: the client's data give it no value, as those
of a single class give no AUROC; the client is left out of means, and counted. A model is broken if its loss is
infinite. A mean over clients is NaN then, since the mean over the others would look better the more models break.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dfl_lightning.links import Links

__all__ = [
    "OverClients",
    "accuracy_summary",
    "client_mean",
    "friend_accuracy",
    "neighbour_precision_recall",
    "of_clients",
    "over_clients",
    "score_summary",
    "undefined",
    "undefined_counts",
    "without_accuracy",
    "without_mean",
    "worst_decile_mean",
]


def neighbour_precision_recall(selected: Links, clusters: Tensor, reachable: Links) -> tuple[float, float]:
    """Compute precision and recall of the selected neighbours against the ground-truth clusters.

    Args:
        selected: links to the neighbours that each receiver selected.
        clusters: the cluster of each client, long [n].
        reachable: links to the neighbours that it could select.

    Returns:
        Precision, the share of the selected that are in the receiver's own cluster (mean over the receivers that
        selected a client), and recall, the share of the reachable members of that cluster that are selected (mean over
        the receivers that can reach one), both in [0, 1]. NaN if there is no such receiver.

    Examples:
        >>> clusters = torch.tensor([0, 0, 1])
        >>> selected = Links.of(torch.tensor([0, 0, 1]), torch.tensor([1, 2, 0]), nodes=3)
        >>> neighbour_precision_recall(selected, clusters, Links.complete(3))
        (0.75, 1.0)
    """
    selected = selected.keep(selected.receivers != selected.senders)
    oneself = Links.loops(torch.ones(len(clusters), dtype=torch.bool)).within(reachable)
    right, relevant = selected.within_groups(clusters), reachable.count_alike(clusters) - oneself.long()
    return _mean_share(right.count, selected.count), _mean_share(right.intersection(reachable).count, relevant)


def friend_accuracy(friends: Tensor, clusters: Tensor, clients: Tensor) -> float:
    """Compute how often a client that dropped out is replaced by one of its own cluster.

    Args:
        friends: the client that replaces it in each case, long [E]; -1 = none, which counts as wrong.
        clusters: the cluster of each client, long [m].
        clients: the client that dropped out in each case, long [E].

    Returns:
        Share of the cases with a friend of the same cluster, in [0, 1]; NaN without cases.

    Examples:
        >>> friend_accuracy(torch.tensor([1, 2]), torch.tensor([0, 0, 1]), clients=torch.tensor([0, 1]))
        0.5
    """
    return _mean(((friends >= 0) & (clusters[friends.clamp(min=0)] == clusters[clients])).double())


def without_accuracy(losses: Tensor, accuracies: Tensor) -> Tensor:
    """Return the clients with data but without an accuracy, because their loss is infinite.

    Args:
        losses: the loss of each client, NaN without data, [..., m].
        accuracies: the accuracy of each client, NaN if it does not exist, [..., m].

    Returns:
        bool [..., m].

    Examples:
        >>> without_accuracy(torch.tensor([0.5, torch.inf, torch.nan]), torch.tensor([0.9, torch.nan, torch.nan]))
        tensor([False,  True, False])
    """
    return accuracies.isnan() & losses.isinf()


def undefined(losses: Tensor, values: Tensor, scores: Tensor | None = None) -> Tensor:
    """Return the clients with data whose number is NaN although their model is not broken.

    Args:
        losses: the loss of each client, NaN without data, [..., m].
        values: a number of each client, [..., m].
        scores: the task's score, which tells a broken model from a prediction that gives a sample's class the
            probability 0; None: `values` are the scores.

    Returns:
        bool [..., m].

    Examples:
        >>> losses = torch.tensor([0.5, 0.25, torch.inf, torch.nan])
        >>> undefined(losses, torch.tensor([0.9, torch.nan, torch.nan, torch.nan]))
        tensor([False,  True, False, False])
    """
    broken = without_accuracy(losses, values if scores is None else scores)
    return values.isnan() & ~losses.isnan() & ~broken


def undefined_counts(results: Mapping[str, Tensor], score: str = "acc") -> dict[str, tuple[int, int]]:
    """Count for each array of an evaluation the clients for which it is undefined, and those with data.

    Args:
        results: arrays by names such as `val_loss`, `val_acc` and `test_auroc`, [m] each; those of the loss and of a
            global model are left out.
        score: name of the task's score.

    Examples:
        >>> loss, area = torch.tensor([0.5, 0.25, torch.nan]), torch.tensor([0.9, torch.nan, torch.nan])
        >>> undefined_counts({"test_loss": loss, "test_acc": loss, "test_auroc": area})
        {'test_acc': (0, 2), 'test_auroc': (1, 2)}
    """
    counts = {}
    for name, values in results.items():
        split = name.partition("_")[0]
        losses, scores = results.get(f"{split}_loss"), results.get(f"{split}_{score}")
        if losses is not None and not name.endswith("_loss"):
            counts[name] = (int(undefined(losses, values, scores).sum()), int((~losses.isnan()).sum()))
    return counts


def without_mean(results: Mapping[str, Tensor], score: str = "acc") -> set[str]:
    """Return the names of an evaluation's arrays whose mean over clients is NaN, because the loss of one is infinite.

    The mean loss is infinite then.

    Args:
        results: arrays by names such as `val_loss`, `val_acc` and `global_test_acc`, [m] each.
        score: name of the task's score.

    Examples:
        >>> loss, accuracy = torch.tensor([0.5, torch.inf]), torch.tensor([0.9, torch.nan])
        >>> without_mean({"val_loss": loss, "val_acc": accuracy, "test_loss": loss[:1], "test_acc": accuracy[:1]})
        {'val_acc'}
    """
    splits = [name.removesuffix("_loss") for name in results if name.endswith("_loss")]
    splits = [split for split in splits if f"{split}_{score}" in results]
    broken = [s for s in splits if bool(without_accuracy(results[f"{s}_loss"], results[f"{s}_{score}"]).any())]
    return {name for name in results for split in broken if name.startswith(f"{split}_") and not name.endswith("_loss")}


def of_clients(results: Mapping[str, Tensor], who: Tensor | None) -> dict[str, Tensor]:
    """Return the results of some clients; those of a global model stay as they are.

    Args:
        results: arrays of an evaluation by names such as `test_acc`, [m] each, and `global_test_acc`, [1].
        who: the clients, bool [m]; None: all of them.

    Examples:
        >>> of_clients({"test_acc": torch.tensor([0.5, 0.25])}, torch.tensor([True, False]))
        {'test_acc': tensor([0.5000])}
    """
    if who is None:
        return dict(results)
    return {name: v if name.startswith("global_") else v[who.to(v.device)] for name, v in results.items()}


def client_mean(values: Tensor, broken: Tensor) -> float:
    """Compute the mean over the clients that have a number; NaN if a client has data but no number.

    Args:
        values: one number per client, NaN without data, [m].
        broken: clients with data but without a number, bool [m]; see `without_accuracy`.

    Examples:
        >>> client_mean(torch.tensor([0.5, 1.0, torch.nan]), torch.tensor([False, False, False]))
        0.75
        >>> client_mean(torch.tensor([0.5, 1.0, torch.nan]), torch.tensor([False, False, True]))
        nan
    """
    return float("nan") if bool(broken.any()) else _mean(values)


def worst_decile_mean(values: Tensor) -> float:
    """Compute the mean over the worst tenth of the clients, rounded up to whole clients.

    Args:
        values: one number per client, higher is better, [m].

    Returns:
        Mean of the ceil(m / 10) lowest values, in their unit; NaN without values.

    Examples:
        >>> worst_decile_mean(torch.tensor([0.9, 0.1, 0.8, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.3]))
        0.2...
    """
    values = values.double()
    values = values[~values.isnan()]
    return _mean(values.sort().values[: -(-len(values) // 10)])


@dataclass(frozen=True)
class OverClients:
    """Mean, spread and worst tenth of a measure over the clients that have it.

    Attributes:
        mean: mean over clients.
        std: standard deviation, with n in its denominator.
        worst10: mean of the worst tenth; see `worst_decile_mean`.
    """

    mean: float
    std: float
    worst10: float


def over_clients(values: Tensor, broken: bool = False, higher_is_better: bool = True) -> OverClients:
    """Compute mean, standard deviation and worst tenth of a measure over clients.

    All such numbers that a run writes, prints or draws are computed here.

    Args:
        values: one number per client, NaN without data, [m].
        broken: whether a client with data has no number; see `without_mean`. All three are NaN then.
        higher_is_better: whether the lowest numbers are the worst.

    Examples:
        >>> over_clients(torch.tensor([0.25, 0.75, torch.nan]))
        OverClients(mean=0.5, std=0.25, worst10=0.25)
    """
    known = values[~values.isnan()].double()
    if broken or not len(known):
        return OverClients(torch.nan, torch.nan, torch.nan)
    with np.errstate(invalid="ignore"):  # the standard deviation of losses is NaN where one is infinite
        std = float(np.nanstd(values.double().cpu().numpy()))
    worst = worst_decile_mean(known) if higher_is_better else -worst_decile_mean(-known)
    return OverClients(_mean(values), std, worst)


def accuracy_summary(
    history: Tensor, validation: Tensor | None = None, broken: Tensor | None = None
) -> dict[str, float | None]:
    """Compute the four numbers that papers call "the accuracy" of a run.

    Args:
        history: test accuracy at every evaluation, [evaluations, clients].
        validation: validation accuracy at the same evaluations, [evaluations, clients], if there is any.
        broken: clients with test data but without an accuracy, bool [evaluations, clients]; None: no client.

    Returns:
        The numbers of `score_summary`, named `acc_last`, `acc_best_round`, `acc_best_per_client` and `acc_best_val`.

    Examples:
        >>> history = torch.tensor([[0.5, 0.25], [0.25, 0.75], [0.5, 0.25]])
        >>> accuracy_summary(history, validation=torch.tensor([[0.5, 0.5], [0.5, 0.25], [0.25, 0.5]]))
        {'acc_last': 0.375, 'acc_best_round': 0.5, 'acc_best_per_client': 0.625, 'acc_best_val': 0.25}
    """
    return {f"acc_{name}": value for name, value in score_summary(history, validation, broken).items()}


def score_summary(
    history: Tensor,
    validation: Tensor | None = None,
    broken: Tensor | None = None,
    higher_is_better: bool = True,
) -> dict[str, float | None]:
    """Compute the four numbers that papers call "the score" of a run.

    Args:
        history: the score on test data at every evaluation, [evaluations, clients].
        validation: the score on validation data at the same evaluations, [evaluations, clients], if there is any.
        broken: clients with test data but without a score, bool [evaluations, clients]; None: no client.
        higher_is_better: whether the highest score is the best.

    Returns:
        Means over clients, in the unit of `history`: `last` at the last evaluation; `best_round` at the evaluation with
        the best mean; `best_per_client` of each client's own best (an optimistic bound, chosen on the test data);
        `best_val` at each client's best validation score, the latest among equals, or None without validation. NaN if
        a client with data has no such number.

    Examples:
        >>> errors = torch.tensor([[2.0, 4.0], [4.0, 1.0]])
        >>> score_summary(errors, higher_is_better=False)
        {'last': 2.5, 'best_round': 2.5, 'best_per_client': 1.5, 'best_val': None}
    """
    if len(history) == 0:
        raise ValueError("there is no evaluation to summarise")
    sign = 1 if higher_is_better else -1
    history, broken = history.double(), torch.zeros_like(history, dtype=torch.bool) if broken is None else broken
    means = [client_mean(row, missing) for row, missing in zip(history, broken, strict=True)]
    rounds = torch.tensor(means, dtype=torch.float64)
    best, seen = sign * _best(sign * history), broken.any(0)
    chosen = None if validation is None else latest_best(history, sign * validation.double())
    if validation is not None:
        seen = seen & ~validation.isnan().all(0)
    return {
        "last": float(rounds[-1]),
        "best_round": float(sign * _best(sign * rounds)),
        "best_per_client": client_mean(best, best.isnan() & broken.any(0)),
        "best_val": None if chosen is None else client_mean(chosen, chosen.isnan() & seen),
    }


def _mean(values: Tensor) -> float:
    """Compute the mean of the values that are not NaN, in double precision; NaN without any."""
    numbers = values.double().cpu().numpy()
    return float(np.nanmean(numbers)) if not np.isnan(numbers).all() else torch.nan


def _mean_share(part: Tensor, whole: Tensor) -> float:
    """Compute the mean of part / whole, long [n] each, over the receivers whose `whole` is not 0."""
    return float((part.double() / whole.double()).nanmean())


def _best(values: Tensor) -> Tensor:
    """Compute the maximum over the first dimension without NaN; NaN if all values are NaN."""
    best = torch.where(values.isnan(), torch.full_like(values, -torch.inf), values).amax(0)
    return torch.where(values.isnan().all(0), torch.full_like(best, torch.nan), best)


def latest_best(history: Tensor, validation: Tensor) -> Tensor:
    """Return each client's value at its best validation score, the latest among equals; NaN without validation.

    Args:
        history: a number of each client at every evaluation, [evaluations, clients].
        validation: validation scores at the same evaluations, higher is better, [evaluations, clients].

    Examples:
        >>> latest_best(torch.tensor([[0.5, 0.1], [0.7, 0.2]]), torch.tensor([[0.9, 0.4], [0.9, 0.3]]))
        tensor([0.7000, 0.1000])
    """
    comparable = torch.where(validation.isnan(), torch.full_like(validation, -torch.inf), validation)
    latest = len(validation) - 1 - comparable.flip(0).argmax(0)
    chosen = history.gather(0, latest[None, :])[0]
    return torch.where(validation.isnan().all(0), torch.full_like(chosen, torch.nan), chosen)
