"""Mean losses of k clients' batches."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from dfl_lightning.engines.local_work import LossOf
from dfl_lightning.engines.scoring.mean_scores import sums_of
from dfl_lightning.engines.stacked.layers.kernels import WeightedCrossEntropy
from dfl_lightning.tasks import Classification, MeanLoss, Task
from dfl_lightning.utils.errors import is_out_of_memory


class StackedLoss:
    """Mean loss of each of k clients over its real samples.

    The plain cross-entropy and the losses of a task are computed for all clients at once, padding included. Any other
    loss is written for one client: `torch.vmap` applies it to all clients with equally many samples, so that it never
    gets padding or another client's samples. A loss that vmap does not support is applied client by client.

    Args:
        loss: (scores [B, C], labels [B]) -> mean loss of the batch.

    Attributes:
        is_cross_entropy: True for the plain cross-entropy.
        task: task whose losses of samples are averaged, so that padding can have weight 0; None: only the mean of a
            batch is known.
    """

    def __init__(self, loss: Callable[[Tensor, Tensor], Tensor]) -> None:
        self._loss = loss
        self.is_cross_entropy = is_plain_cross_entropy(loss)
        self.task = Classification() if self.is_cross_entropy else loss.task if isinstance(loss, MeanLoss) else None
        self._one_by_one: set[Hashable] = set()  # Losses that vmap does not support.

    def __call__(self, scores: Tensor, labels: Tensor, sizes: Sequence[int], weights: Tensor) -> Tensor:
        """Compute the clients' mean losses, [k].

        Args:
            scores: outputs of the network, [k, B, ...].
            labels: [k, B].
            sizes: the first `sizes[i]` samples of client i are real.
            weights: weights of samples in their client's mean, [k, B]; see `StackedBatch`.
        """
        if self.is_cross_entropy and scores.dim() == 3:
            # In reduced precision, layers return scores of a smaller type.
            return WeightedCrossEntropy.apply(scores.to(weights.dtype), labels, weights)
        if self.task is not None and not self.is_cross_entropy:
            return _means_of(self.task, scores, labels, weights)
        return self._for_each(self._loss, (scores, labels), (), sizes)

    def amounts(self, labels: Tensor, weights: Tensor, counts: Tensor) -> Tensor:
        """Return the weights of clients' batches in a mean over batches, [k].

        They are the numbers of real samples, or the sums of the task's weights of these.

        Args:
            labels: [k, B, ...].
            weights: [k, B], 0 for padding; see `StackedBatch`.
            counts: numbers of real samples, [k].
        """
        of_samples = None if self.task is None else self.task.weights(labels)
        return counts if of_samples is None else of_samples.where(weights > 0, 0).sum(1)

    def sample_by_sample(self, task: Task) -> Task | None:
        """Return this loss's task if its losses can be averaged with the weights of the run's task; else None.

        Args:
            task: the run's task, from which a user's loss may differ.
        """
        alike = all(type(each).weights is Task.weights for each in (self.task, task) if each is not None)
        return self.task if alike or self.task is task else None

    def own(
        self,
        loss: LossOf,
        scores: Tensor,
        samples: Mapping[str, Tensor],
        features: Mapping[str, Tensor],
        extras: Sequence[Tensor],
        sizes: Sequence[int],
    ) -> Tensor:
        """Compute the clients' mean losses by an objective's own function, [k].

        Args:
            loss: function of one client's batch; see `LossOf`.
            scores: [k, B, C].
            samples: the batch's tensors by name, [k, B, ...] each.
            features: inputs of layers by name, [k, B, ...] each.
            extras: further tensors of the clients, [k, ...] each.
            sizes: the first `sizes[i]` samples of client i are real.
        """

        def of_one(scores: Tensor, samples: Any, features: Any, *extras: Tensor) -> Tensor:
            return loss(scores, SimpleNamespace(**samples), features, *extras)

        return self._for_each(of_one, (scores, dict(samples), dict(features)), extras, sizes, of=_key(loss))

    def means(
        self, scores: Sequence[Tensor], labels: Sequence[Tensor], longest: int, weights: Sequence[Tensor] | None = None
    ) -> Tensor:
        """Compute the mean losses of J jobs in an evaluation, float64 [J].

        Args:
            scores: outputs of each job, [B, C].
            labels: labels of each job, [B].
            longest: largest number of samples in one call of the loss.
            weights: weights of each job's samples in its mean, [B]; None: 1 each.
        """
        losses = torch.zeros(len(scores), dtype=torch.float64, device=scores[0].device)
        for size, jobs in _by_size([len(y) for y in labels]).items():
            s, y = torch.stack([scores[job] for job in jobs]), torch.stack([labels[job] for job in jobs])
            w = None if weights is None else torch.stack([weights[job] for job in jobs]).double()
            total = torch.zeros(len(jobs), dtype=torch.float64, device=s.device)
            for part in torch.arange(size).split(longest):
                now = slice(int(part[0]), int(part[-1]) + 1)
                means = self._for_each(self._loss, (s[:, now], y[:, now]), (), [len(part)] * len(jobs))
                total += sums_of(means, len(part) if w is None else w[:, now].sum(1))
            losses[torch.tensor(jobs, device=losses.device)] = total / (size if w is None else w.sum(1))
        return losses

    def _for_each(
        self,
        loss: Callable[..., Tensor],
        per_sample: tuple[Any, ...],
        per_client: Sequence[Tensor],
        sizes: Sequence[int],
        of: Hashable = None,
    ) -> Tensor:
        """Compute the loss of each client's real samples, [k], for groups of clients with equally many samples."""
        groups = _by_size(sizes)
        if len(groups) == 1:
            (size,) = groups
            return self._of_group(loss, tree_map(lambda t: t[:, :size], per_sample), per_client, of)
        losses, order = [], []
        for size, clients in groups.items():
            index = torch.tensor(clients, device=tree_first(per_sample).device)
            mine = tree_map(partial(_some, index, size), per_sample)
            losses.append(self._of_group(loss, mine, [t.index_select(0, index) for t in per_client], of))
            order += clients
        back = torch.argsort(torch.tensor(order)).to(losses[0].device)
        return torch.cat(losses).index_select(0, back)

    def _of_group(
        self, loss: Callable[..., Tensor], per_sample: tuple[Any, ...], per_client: Sequence[Tensor], of: Hashable
    ) -> Tensor:
        """Compute the losses of clients with equally many samples, [k], by vmap if possible."""
        if of not in self._one_by_one:
            try:
                return torch.vmap(loss)(*per_sample, *per_client)
            except Exception as error:  # Vmap does not support the loss; an error of the loss itself is raised below.
                if is_out_of_memory(error):
                    raise
                self._one_by_one.add(of)
        clients = range(len(tree_first(per_sample)))
        return torch.stack([loss(*tree_map(lambda t, i=i: t[i], (*per_sample, *per_client))) for i in clients])


def _means_of(task: Task, outputs: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
    """Compute mean losses [k] of outputs [k, B, ...] by a task, where `weights` [k, B] are 0 for padding."""
    losses, of_samples = task.losses(outputs, targets), task.weights(targets)
    if of_samples is None:
        return (losses.where(weights > 0, 0.0) * weights).sum(1)  # The loss of padding may be infinite.
    real = weights > 0
    total = of_samples.where(real, torch.zeros_like(of_samples)).sum(1)
    return losses.where(real, 0.0).sum(1) / total.clamp(min=1)


def tree_first(tree: Any) -> Tensor:
    """Return the first tensor of nested tuples and dicts."""
    first: Tensor = torch.utils._pytree.tree_leaves(tree)[0]
    return first


def _some(index: Tensor, size: int, tensor: Tensor) -> Tensor:
    """Select some clients, and the first `size` samples of each."""
    return tensor.index_select(0, index)[:, :size]


def _by_size(sizes: Sequence[int]) -> dict[int, list[int]]:
    """Group the indices of clients, or of jobs, by their number of samples."""
    groups: dict[int, list[int]] = defaultdict(list)
    for index, size in enumerate(sizes):
        groups[size].append(index)
    return groups


def _key(loss: Callable[..., Tensor]) -> Hashable:
    """Return a key of a loss that is the same for functions which each step defines again."""
    code: Hashable = getattr(loss, "__code__", None)
    return type(loss).__qualname__ if code is None else code


def is_plain_cross_entropy(loss: object) -> bool:
    """Return True if a loss is `nn.CrossEntropyLoss` with its default options."""
    if type(loss) is not nn.CrossEntropyLoss:
        return False
    as_it_comes = loss.reduction == "mean" and loss.label_smoothing == 0 and loss.ignore_index == -100
    return loss.weight is None and as_it_comes


def sample_weights(counts: Tensor, length: int, dtype: torch.dtype) -> Tensor:
    """Return weights of samples in the mean over a padded batch: 1 / count for real samples, 0 for padding.

    Args:
        counts: number of real samples of each batch, int64 [...].
        length: length of the padded batches.
        dtype: type of the weights.

    Returns:
        [..., length].
    """
    counts = counts.unsqueeze(-1)
    return (torch.arange(length, device=counts.device) < counts).to(dtype) / counts.clamp(min=1)
