"""A task whose lower score is better and is no share: the misses of a network for digits, in a unit of their own."""

import torch
import torch.nn.functional as F

from dfl_lightning.tasks import Task


class Misses(Task):
    """A root mean squared distance of probabilities and labels, in hundreds; the loss is its square."""

    numbers = ("rmse", "mae")
    names = ("square", "mae")
    higher_is_better = False
    has_classes = True

    def losses(self, outputs, targets):
        return (100 * (outputs.softmax(-1) - F.one_hot(targets, outputs.shape[-1]))).square().sum(-1) / 1e4

    def statistics(self, outputs, targets):
        squares = 1e4 * self.losses(outputs, targets)
        return {"square": squares, "mae": squares.sqrt()}

    def finish(self, means):
        return {"rmse": means["square"].sqrt(), "mae": means["mae"]}


def with_misses(run):
    """The run of `small_run`, on this task."""
    run.module.chosen_task = Misses()
    return run


def rmse_of(probabilities, labels):
    """The score, by its formula."""
    truth = torch.eye(probabilities.shape[-1], dtype=probabilities.dtype)[labels]
    return float((1e4 * (probabilities - truth).square().sum(-1)).mean().sqrt())
