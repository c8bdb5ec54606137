"""The time of a step on a GPU, for decisions that depend on the card."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from dfl_lightning.bank.card import give_back
from dfl_lightning.engines.stacked.context import StackedContext
from dfl_lightning.engines.stacked.gpu.cuda_graphs import Recorder
from dfl_lightning.engines.stacked.layers.passes import Pass
from dfl_lightning.engines.stacked.network import StackedNetwork
from dfl_lightning.engines.stacked.parameters import Staging
from dfl_lightning.utils.errors import is_out_of_memory

PASSES = 5
"""Of how many passes the fastest counts, after two that count for nothing."""

WORTHWHILE = 0.97
"""A layer is unfolded where a step then takes at most this share of its time: less is noise."""


class StepTimer:
    """Times forward and backward passes of k clients with full batches, in the memory that training has.

    Args:
        context: what the jobs of an engine have in common.
        clients: k.
        recorder: records the passes, where the run's steps are recorded.
    """

    def __init__(self, context: StackedContext, clients: int, recorder: Recorder | None = None) -> None:
        self._context, self._clients, self._recorder = context, clients, recorder

    def __call__(self) -> float:
        """Seconds of one pass, with the convolutions unfolded that the network's `unfolded` names now.

        Infinite where the GPU's memory is not enough.
        """
        try:
            with torch.enable_grad():
                run = self._pass()
                return min([self._seconds(run) for _ in range(2 + PASSES)][2:])
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            return math.inf
        finally:
            give_back(self._context.data.images.device)

    def _pass(self) -> Callable[[], object]:
        """A pass, recorded where that can be."""
        context, clients, size = self._context, self._clients, self._context.config.batch_size
        device = context.data.images.device
        row = context.layout.flatten(context.network.network, context.config.dtype).to(device).expand(clients, -1)
        parameters = Staging(context.layout, lambda start, stop: row[:, start:stop]).tensors
        wanted = [parameters[entry.name].requires_grad_() for entry in context.layout.entries if entry.trainable]
        samples = torch.cat(list(context.data.train))
        batch = samples.repeat(-(-clients * size // len(samples)))[: clients * size].view(clients, size)
        inputs, labels = context.data.batch(batch, dtype=context.config.dtype)
        weights = torch.full((clients, size), 1 / size, dtype=context.config.dtype, device=device)
        masks = torch.zeros(clients, 2, dtype=torch.int32, device=device)

        def run() -> None:
            with context.config.arithmetic(device):
                scores = context.network(Pass(dict(parameters), True, masks), inputs)
                losses: Tensor = context.loss(scores, labels, [size] * clients, weights)
            torch.autograd.grad(losses.sum(), wanted, allow_unused=True)

        if self._recorder is None:
            return run
        try:
            return self._recorder.record(run)
        except Exception as error:  # what cannot be recorded will not be in training either
            if is_out_of_memory(error):
                raise
            return run

    def _seconds(self, run: Callable[[], object]) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1000


def choose_unfolded(
    network: StackedNetwork,
    seconds: Callable[[], float],
    allowed: Callable[[frozenset[str]], bool] = lambda names: True,
) -> frozenset[str]:
    """Unfold, one after the other, those convolutions that make the whole network faster.

    Args:
        network: its `unfolded` is set to the choice.
        seconds: the time of a forward and backward pass of the network as it is set; infinite where it fails.
        allowed: whether there is room for these layers' patches; others are not tried.

    Returns:
        Names of the layers.
    """
    network.unfolded = frozenset()
    candidates = [name for name in network.can_be_unfolded() if allowed(frozenset({name}))]
    best = seconds() if candidates else 0.0
    for name in candidates:
        before = network.unfolded
        network.unfolded = before | {name}
        found = seconds() if allowed(network.unfolded) else math.inf
        if found < math.inf and found <= WORTHWHILE * best:
            best = found
        else:
            network.unfolded = before
    return network.unfolded
