"""Choice of how many models a GPU evaluates side by side, by measured times.

Models side by side need few launches, but their convolutions have groups, which a GPU computes slowly. One model alone
has ordinary convolutions, and needs launches of its own. So the faster way depends on the network, the GPU, the number
of models and that of their samples. Passes of two lengths are timed before the first round; a straight line through
both predicts the time of any evaluation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dfl_lightning.engines.stacked.context import StackedContext
from dfl_lightning.engines.stacked.gpu.autotune import WORTHWHILE, fastest
from dfl_lightning.engines.stacked.layers.passes import Pass
from dfl_lightning.engines.stacked.parameters import Staging

WIDTHS = (16, 4, 1)
"""Numbers of models side by side that are tried, in addition to the largest one."""

SHORT, LONG = 16, 2**15
"""Samples of each model in the short pass, and of all models together in the long one, if memory allows it."""


@dataclass(frozen=True)
class Way:
    """Way of evaluating models.

    Args:
        width: number of models side by side.
        unfolded: convolutions that are computed by patches and a product.
    """

    width: int
    unfolded: frozenset[str] = frozenset()


def ways_of(widest: int, unfolded: frozenset[str]) -> list[Way]:
    """List the ways to try, wider ones first.

    A convolution of one model is an ordinary one, so that patches are not tried for it.

    Args:
        widest: largest number of models for which there is memory.
        unfolded: the convolutions that training unfolds.
    """
    widths = [widest, *(width for width in WIDTHS if width < widest)]
    methods = [unfolded, frozenset[str]()] if unfolded else [frozenset[str]()]
    return [Way(width, names) for width in widths for names in methods if width > 1 or not names]


@dataclass(frozen=True)
class PassTime:
    """Predicted time of a pass: a fixed part, and a part for each sample of each model.

    Args:
        fixed: seconds of the pass; infinity if its memory is not enough.
        sample: seconds for each sample of each model.
    """

    fixed: float
    sample: float

    @classmethod
    def through(cls, short: tuple[int, float], long: tuple[int, float]) -> PassTime:
        """Draw the line through two passes, (samples of all models, seconds) each; neither part is negative.

        Examples:
            >>> PassTime.through((10, 2.0), (30, 6.0))
            PassTime(fixed=0.0, sample=0.2)
            >>> PassTime.through((10, 2.0), (30, 1.5))
            PassTime(fixed=2.0, sample=0.0)
        """
        (few, before), (many, after) = short, long
        if math.inf in (before, after):
            return cls(math.inf, 0.0)
        sample = max(0.0, (after - before) / (many - few)) if many > few else 0.0
        return cls(max(0.0, before - sample * few), sample)

    def seconds(self, totals: Tensor, width: int, length: int) -> float:
        """Predict the time of an evaluation.

        Args:
            totals: number of samples of each model, long [k], descending.
            width: number of models side by side.
            length: number of samples of each model in a pass at most.
        """
        longest = totals[::width]  # The first model of each group has the most samples.
        models = torch.full_like(longest, width)
        models[-1] = len(totals) - width * (len(longest) - 1)
        passes = -(-longest // length)
        return self.fixed * float(passes.sum()) + self.sample * float((longest * models).sum())


@dataclass(frozen=True)
class MeasuredWays:
    """Ways of evaluating models, with their measured times.

    Args:
        ways: the ways, wider ones first.
        lines: the predicted time of a pass in each of them.
    """

    ways: Sequence[Way]
    lines: Sequence[PassTime]

    def best(self, totals: Tensor, length: Callable[[Way], int]) -> Way:
        """Return the fastest way of an evaluation; the wider one if the gain is small or no pass could be timed.

        Args:
            totals: number of samples of each model, long [k], descending.
            length: way -> number of samples of each model in a pass at most.
        """
        best, least = self.ways[0], math.inf
        for way, line in zip(self.ways, self.lines, strict=True):
            if line.fixed < math.inf:
                seconds = line.seconds(totals, way.width, length(way))
                if seconds <= WORTHWHILE * least:
                    best, least = way, seconds
        return best


class EvaluationTimer:
    """Timer of evaluation passes.

    Args:
        context: the parts that all jobs of the engine share.
    """

    def __init__(self, context: StackedContext) -> None:
        self._context = context

    def __call__(self, way: Way, samples: int) -> float:
        """Measure the seconds of one pass of `way.width` models; infinity if memory is not enough.

        Args:
            way: how to compute it.
            samples: number of samples of each model.
        """
        with torch.no_grad():
            return fastest(lambda: self._pass(way, samples), self._context.data.images.device)

    def _pass(self, way: Way, samples: int) -> Callable[[], object]:
        context, width = self._context, way.width
        device, dtype = context.data.images.device, context.config.dtype
        row = context.layout.flatten(context.network.network, dtype).to(device).expand(width, -1)
        tensors = Staging(context.layout, lambda start, stop: row[:, start:stop]).tensors
        some = torch.cat(list(context.data.train))
        batch = some.repeat(-(-width * samples // len(some)))[: width * samples].view(width, samples)
        inputs, _ = context.data.batch(batch, dtype=dtype)

        def run() -> None:
            with torch.no_grad(), context.config.arithmetic(device):
                context.network(Pass(dict(tensors), training=False, unfolded=way.unfolded), inputs)

        return run


def measure(ways: Sequence[Way], seconds: Callable[[Way, int], float], length: Callable[[Way], int]) -> MeasuredWays:
    """Time a short and a long pass of each way.

    Args:
        ways: the ways.
        seconds: measures a pass of so many samples of each model; infinity if it fails.
        length: way -> number of samples of each model in a pass at most.
    """
    lines = []
    for way in ways:
        long = max(1, min(length(way), max(2 * SHORT, LONG // way.width)))
        short = min(SHORT, long)
        lines.append(PassTime.through((way.width * short, seconds(way, short)), (way.width * long, seconds(way, long))))
    return MeasuredWays(tuple(ways), tuple(lines))
