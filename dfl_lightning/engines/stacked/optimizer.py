"""User's optimizer on k stacked clients, where k falls as clients finish their steps."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dfl_lightning.engines.stacked.parameters import memory


class PrefixOptimizer:
    """One optimizer of torch for all clients that still have steps to do.

    Clients are sorted by falling number of steps, so that those with steps left are the first k; their parameters and
    states are views of all clients'. These clients have taken equally many steps so far, and share one step count.
    Updates are elementwise (`optimizer_trial` refuses other optimizers), so that clients do not affect each other.

    Args:
        make: stacked parameters -> a fresh optimizer of them.
    """

    def __init__(self, make: Callable[[list[nn.Parameter]], torch.optim.Optimizer]) -> None:
        self._make = make
        self._optimizer: torch.optim.Optimizer | None = None
        self._parameters: list[nn.Parameter] = []
        self._given: list[dict[str, Any]] = []  # The first states.

    def step(self, tensors: Sequence[Tensor], grads: Sequence[Tensor | None]) -> None:
        """Update the first k clients' parameters in place.

        Args:
            tensors: parameters, [k, *shape] each; k never grows within a phase.
            grads: their gradients, [k, *shape] each; None: the parameter is not changed.
        """
        if self._optimizer is None or len(tensors[0]) != len(self._parameters[0]):
            self._narrow(tensors)
        for parameter, grad in zip(self._parameters, grads, strict=True):
            # Fused kernels read the memory in its order, so it must be contiguous.
            parameter.grad = None if grad is None else memory(grad).contiguous()
        assert self._optimizer is not None
        self._optimizer.step()
        for parameter in self._parameters:
            parameter.grad = None  # The next gradients reuse this memory, which is still in the cache.

    def states(self) -> list[dict[str, Any]]:
        """Return the optimizer's state of each parameter: tensors [k, ...], and values that all clients share."""
        if self._optimizer is None:
            return self._given
        return [self._optimizer.state[parameter] for parameter in self._parameters]

    def on_buffers(self, states: list[dict[str, Any]]) -> PrefixOptimizer:
        """Copy the optimizer for other tensors, which have these states."""
        other = copy.copy(self)
        other._optimizer, other._parameters, other._given = None, [], states
        return other

    def starts_from_zeros(self, like: Tensor, count: int) -> bool:
        """Try a first step with states of zeros; return True if it equals the first step without states.

        The trial is on parameters with a single number.

        Args:
            like: a parameter with the type and device.
            count: number of parameters.
        """
        _, made = self._small_step(like, count, [])
        if not all(torch.is_tensor(value) for state in made for value in state.values() if value is not None):
            return False
        zeros = [{name: None if v is None else torch.zeros_like(v) for name, v in state.items()} for state in made]
        result, expected = (_numbers(*self._small_step(like, count, states)) for states in (zeros, []))
        return len(result) == len(expected) and all(map(torch.equal, result, expected))

    def _small_step(
        self, like: Tensor, count: int, states: list[dict[str, Any]]
    ) -> tuple[list[nn.Parameter], list[dict[str, Any]]]:
        """Take a step from given states with parameters of one number each; return parameters and new states."""
        parameters = [nn.Parameter(like.new_full((1,), 0.5)) for _ in range(count)]
        optimizer = self._make(parameters)
        for parameter, state in zip(parameters, states, strict=False):
            optimizer.state[parameter] = dict(state)
        for parameter in parameters:
            parameter.grad = like.new_full((1,), 0.25)
        optimizer.step()
        return parameters, [dict(optimizer.state[parameter]) for parameter in parameters]

    def _narrow(self, tensors: Sequence[Tensor]) -> None:
        former = self.states()
        self._parameters = [nn.Parameter(memory(tensor.detach())) for tensor in tensors]
        optimizer = self._make(self._parameters)
        for state, new in zip(former, self._parameters, strict=False):
            if not state:
                continue  # It has not taken a step, and needs no state.
            optimizer.state[new] = {
                name: value[: len(new)] if torch.is_tensor(value) and value.dim() else value
                for name, value in state.items()
            }
        self._optimizer = optimizer


def _numbers(parameters: Sequence[Tensor], states: Sequence[dict[str, Any]]) -> list[Tensor]:
    """Collect the parameters and all tensors of their states."""
    return [*parameters, *(value for state in states for value in state.values() if torch.is_tensor(value))]
