"""The user's optimizer on k clients, of whom fewer and fewer are left."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dfl_lightning.bank.stacked.staging import memory


class PrefixOptimizer:
    """One optimizer of torch for all clients that still have steps to do.

    Clients are sorted by their number of steps, so that those left are always the first ones; their parameters and
    their states are views of everybody's. All clients have taken equally many steps so far, so that a step count is
    common property. Updates are elementwise (`optimizer_trial` finds the others), hence each client's own.

    Args:
        make: stacked parameters -> a fresh optimizer of them.
    """

    def __init__(self, make: Callable[[list[nn.Parameter]], torch.optim.Optimizer]) -> None:
        self._make = make
        self._optimizer: torch.optim.Optimizer | None = None
        self._parameters: list[nn.Parameter] = []
        self._given: list[dict[str, Any]] = []  # states to begin with

    def step(self, tensors: Sequence[Tensor], grads: Sequence[Tensor]) -> None:
        """Update the first k clients' tensors, [k, *shape] each, in place."""
        if self._optimizer is None or len(tensors[0]) != len(self._parameters[0]):
            self._narrow(tensors)
        for parameter, grad in zip(self._parameters, grads, strict=True):
            parameter.grad = memory(grad).contiguous()  # the fused kernels read straight through the memory
        assert self._optimizer is not None
        self._optimizer.step()
        for parameter in self._parameters:
            parameter.grad = None  # the next gradients get this memory, which the cache still holds

    def states(self) -> list[dict[str, Any]]:
        """What torch's optimizer remembers of each parameter: tensors [k, ...], and others common to all clients."""
        if self._optimizer is None:
            return self._given
        return [self._optimizer.state[parameter] for parameter in self._parameters]

    def elsewhere(self, states: list[dict[str, Any]]) -> PrefixOptimizer:
        """The same for other tensors, with these states of theirs."""
        other = copy.copy(self)
        other._optimizer, other._parameters, other._given = None, [], states
        return other

    def _narrow(self, tensors: Sequence[Tensor]) -> None:
        former = self.states()
        self._parameters = [nn.Parameter(memory(tensor.detach())) for tensor in tensors]
        optimizer = self._make(self._parameters)
        for state, new in zip(former, self._parameters, strict=False):
            optimizer.state[new] = {
                name: value[: len(new)] if torch.is_tensor(value) and value.dim() else value
                for name, value in state.items()
            }
        self._optimizer = optimizer
