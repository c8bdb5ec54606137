"""The task of predicting the next token of a line."""

from __future__ import annotations

from collections.abc import Mapping

import torch.nn.functional as F
from torch import Tensor

from dfl_lightning.tasks.task import Task
from dfl_lightning.utils.errors import UserError

__all__ = ["NextToken"]


class NextToken(Task):
    """Prediction of the token that follows at each of T positions.

    Outputs are scores of C tokens, [..., T, C], targets the tokens that follow, int64 [..., T]. A target of -1 is
    ignored. All other tokens count alike, so that a sample weighs as many tokens as it has. The loss is the mean
    negative log-likelihood over tokens. The score is `perplexity`, the exponential of the loss; lower is better.
    `token_acc` is the share of the targets that have the highest score.

    Examples:
        >>> import torch
        >>> outputs, targets = torch.zeros(1, 3, 4), torch.tensor([[2, 0, -1]])
        >>> task = NextToken()
        >>> weight = task.weights(targets).sum()
        >>> means = {name: v.sum() / weight for name, v in task.statistics(outputs, targets).items()}
        >>> {name: round(float(v), 3) for name, v in task.finish(means).items()}
        {'perplexity': 4.0, 'token_acc': 0.5}
    """

    numbers = ("perplexity", "token_acc")
    names = ("likelihood", "token_acc")
    higher_is_better = False

    def output_shape(self, targets: Tensor, num_classes: int) -> tuple[int, ...]:
        """Return (T, C), the shape of the scores of C tokens at T positions; see `Task.output_shape`."""
        if targets.is_floating_point() or targets.dim() != 2 or not num_classes:
            kind = str(targets.dtype).removeprefix("torch.")
            raise UserError(
                "model.task NextToken needs targets that are the numbers of tokens, int64 [N, T], as those of data "
                f"Text, but those of the data are {kind} {list(targets.shape)}; leave model.task out"
            )
        return (targets.shape[1], num_classes)

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the negative log-likelihood of each sample's tokens, summed over them, [...].

        Args:
            outputs: logits [..., T, C].
            targets: int64 [..., T].
        """
        flat = F.cross_entropy(outputs.flatten(0, -2), targets.flatten(), ignore_index=-1, reduction="none")
        return flat.view(targets.shape).sum(-1)

    def statistics(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Sum the negative log-likelihoods and count the right predictions over the tokens of each sample, [...].

        Args:
            outputs: logits [..., T, C].
            targets: int64 [..., T].
        """
        best = outputs.max(dim=-1)  # torch takes a NaN for the highest score, which must not count as right
        right = (best.indices == targets) & best.values.isfinite()
        return {"likelihood": self.losses(outputs, targets).double(), "token_acc": right.sum(-1)}

    def weights(self, targets: Tensor) -> Tensor:
        """Count the tokens of each sample that are not ignored, [...].

        Args:
            targets: int64 [..., T].
        """
        return (targets >= 0).sum(-1).float()

    def finish(self, means: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return `perplexity` and `token_acc`; see `Task.finish`."""
        return {"perplexity": means["likelihood"].exp(), "token_acc": means["token_acc"]}
