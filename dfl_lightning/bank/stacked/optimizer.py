"""The user's optimizer on k clients, of whom fewer and fewer are left."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dfl_lightning.bank.stacked.staging import memory


class PrefixOptimizer:
    """One optimizer of torch for all clients that still have steps to do.

    Clients are sorted by their number of steps, so that those left are always the first ones; their parameters and
    their states are views of everybody's. All clients have taken equally many steps so far, so that a step count is
    common property. Updates are elementwise (`dfl_lightning.optimizers` refuses the others), hence each client's own.

    Args:
        make: parameters -> optimizer; the user's class and arguments.
        lr: learning rate of the round, in place of the optimizer's own; a tensor [] where steps are recorded.
        device: where the parameters are.
    """

    def __init__(
        self, make: Callable[..., torch.optim.Optimizer], lr: float | Tensor, device: torch.device | str = "cpu"
    ) -> None:
        self._make, self._lr = _fused_if_possible(make, device), lr
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
        for group in optimizer.param_groups:
            group["lr"] = self._lr
            if torch.is_tensor(self._lr) and self._lr.is_cuda and "capturable" in group:
                group["capturable"] = True  # its step counts stay on the device
        for state, new in zip(former, self._parameters, strict=False):
            optimizer.state[new] = {
                name: value[: len(new)] if torch.is_tensor(value) and value.dim() else value
                for name, value in state.items()
            }
        self._optimizer = optimizer


def _fused_if_possible(
    make: Callable[..., torch.optim.Optimizer], device: torch.device | str = "cpu"
) -> Callable[..., torch.optim.Optimizer]:
    """The same optimizer with its fused kernel, where it has one there and the user has not chosen another."""
    probe = make([nn.Parameter(torch.zeros(1))])
    kind, defaults = type(probe), probe.defaults
    accepted = inspect.signature(kind.__init__).parameters
    asked = any(defaults.get(name) is not None for name in ("foreach", "fused"))
    asked |= any(defaults.get(name) for name in ("capturable", "differentiable"))
    tensor_options = any(torch.is_tensor(value) for value in defaults.values())
    if kind.__module__.partition(".")[0] != "torch" or "fused" not in accepted or asked or tensor_options:
        return make
    options: dict[str, Any] = {name: value for name, value in defaults.items() if name in accepted} | {"fused": True}
    if torch.device(device).type != "cpu":
        trial = nn.Parameter(torch.zeros(1, device=device))
        trial.grad = torch.zeros_like(trial)
        try:
            kind([trial], **options).step()
        except RuntimeError:  # torch's way to say that it has no such kernel there
            return make
    return lambda parameters: kind(parameters, **options)


def works_on_tensors_alone(make: Callable[..., torch.optim.Optimizer], device: torch.device | str) -> bool:
    """Whether a step needs no number on the host, so that it can be recorded with a learning rate that changes."""
    (group,) = _fused_if_possible(make, device)([nn.Parameter(torch.zeros(1, device=device))]).param_groups
    return bool(group.get("fused")) or (torch.device(device).type == "cuda" and "capturable" in group)
