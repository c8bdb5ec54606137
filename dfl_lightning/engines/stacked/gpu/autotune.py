"""Measurement of a step's time on a GPU, and what is chosen by it: methods of convolutions, and recorded steps."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from dfl_lightning.bank.card import give_back
from dfl_lightning.engines.stacked.context import StackedContext
from dfl_lightning.engines.stacked.gpu.cuda_graphs import Recorder
from dfl_lightning.engines.stacked.layers.passes import Pass
from dfl_lightning.engines.stacked.networks.traced import StackedNetwork
from dfl_lightning.engines.stacked.parameters import Staging
from dfl_lightning.utils.errors import is_out_of_memory

PASSES = 5
"""Number of timed passes, whose fastest one counts; two passes before them only warm up."""

WORTHWHILE = 0.97
"""Largest share of a time at which another way of computing counts as faster; smaller gains are noise."""


def fastest(make: Callable[[], Callable[[], object]], device: torch.device) -> float:
    """Make a pass and measure the seconds of its fastest run on a GPU; infinity if memory is not enough.

    Args:
        make: returns a function that does the pass.
        device: the GPU.
    """
    try:
        run = make()
        return min([_seconds(run) for _ in range(2 + PASSES)][2:])
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return math.inf
    finally:
        give_back(device)


def _seconds(run: Callable[[], object]) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    run()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1000


class StepTimer:
    """Timer of a forward and backward pass of k clients with full batches, in the memory that training has.

    Args:
        context: the parts that all jobs of the engine share.
        clients: k.
        recorder: recorder of the pass; None: steps are not recorded.
    """

    def __init__(self, context: StackedContext, clients: int, recorder: Recorder | None = None) -> None:
        self._context, self._clients, self._recorder = context, clients, recorder

    def __call__(self) -> float:
        """Measure the seconds of one pass with the network's present `unfolded`; infinity if memory is not enough."""
        with torch.enable_grad():
            return fastest(self._pass, self._context.data.images.device)

    def _pass(self) -> Callable[[], object]:
        """Return a function that does a pass; it replays a recording if the pass can be recorded."""
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
        except Exception as error:  # Training cannot record such a pass, either.
            if is_out_of_memory(error):
                raise
            return run


def choose_unfolded(
    network: StackedNetwork,
    seconds: Callable[[], float],
    allowed: Callable[[frozenset[str]], bool] = lambda names: True,
) -> frozenset[str]:
    """Try to unfold the convolutions one after the other, and keep each choice that makes the whole network faster.

    Args:
        network: the network; its `unfolded` is set to the choice.
        seconds: measures a forward and backward pass of the network with its present `unfolded`; infinity if it fails.
        allowed: names of layers -> True if there is memory for their patches; other choices are not tried.

    Returns:
        The names of the unfolded layers.
    """
    network.unfolded = frozenset()
    candidates = [name for name in network.can_be_unfolded() if allowed(frozenset({name}))]
    best = seconds() if candidates else 0.0
    for name in candidates:
        before = network.unfolded
        network.unfolded = before | {name}
        measured = seconds() if allowed(network.unfolded) else math.inf
        if measured < math.inf and measured <= WORTHWHILE * best:
            best = measured
        else:
            network.unfolded = before
    return network.unfolded


def choose_recorded(
    network: StackedNetwork,
    plain: Callable[[], float],
    recorded: Callable[[], float],
    allowed: Callable[[frozenset[str]], bool] = lambda names: True,
) -> bool:
    """Choose the convolutions with and without recorded steps, and return True if recorded steps are faster.

    Args:
        network: the network; its `unfolded` is set to the faster choice.
        plain: measures a pass of the network with its present `unfolded`; infinity if it fails.
        recorded: the same for a replay of the pass.
        allowed: see `choose_unfolded`.
    """
    without = choose_unfolded(network, plain, allowed)
    seconds = plain()
    choose_unfolded(network, recorded, allowed)
    if recorded() <= WORTHWHILE * seconds:
        return True
    network.unfolded = without
    return False
