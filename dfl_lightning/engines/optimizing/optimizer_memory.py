"""Names of the optimizer states that the bank keeps from round to round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dfl_lightning.engines.optimizing.optimizers import ClientOptimizer
from dfl_lightning.utils.errors import UserError

STARTED = "started"
"""Name of the number that is 1 if the optimizer has a state for a parameter, and 0 before its first step."""


@dataclass(frozen=True)
class OptimizerMemory:
    """Names under which the bank keeps the state of every client's optimizers.

    Torch's optimizers have a state for each parameter, which the parameter's first step creates. Tensors of the
    parameter's shape become row sets, with one row for each client. Single numbers, such as Adam's count of steps,
    become numbers of the client, one for each parameter, since parameters may have taken different numbers of steps.

    Args:
        shaped: names of the state's tensors that have the parameter's shape, such as `exp_avg`.
        single: names of the state's single numbers, such as `step`, with their types.
        models: row sets whose models are trained, each by an optimizer of its own.
        parameters: number of the network's parameters.
        optimizer: name of the optimizer, for messages.
    """

    shaped: tuple[str, ...]
    single: Mapping[str, torch.dtype]
    models: tuple[str, ...]
    parameters: int
    optimizer: str

    @classmethod
    def of(cls, optimizer: ClientOptimizer, models: Sequence[str], parameters: int) -> OptimizerMemory | None:
        """Find the fields of the optimizer's state by a trial.

        Args:
            optimizer: the user's optimizer.
            models: row sets whose models the optimizer trains.
            parameters: number of the network's parameters.

        Returns:
            The names, or None if the optimizer has no state, as SGD without momentum.

        Raises:
            UserError: the state has entries that are neither tensors of a parameter's shape nor single numbers.
        """
        fields = optimizer.remembered()
        if not fields:
            return None
        shaped = tuple(name for name, kind in fields.items() if kind is None)
        single = {name: kind for name, kind in fields.items() if kind is not None}
        return cls(shaped, single, tuple(models), parameters, optimizer.name)

    def row_set(self, of: str, field: str) -> str:
        """Name the row set that keeps a tensor of the state.

        Args:
            of: the row set of the models.
            field: an entry of `shaped`.
        """
        return f"optimizer.{field}" if of == "models" else f"optimizer.{of}.{field}"

    def number(self, of: str, field: str, place: int) -> str:
        """Name the clients' number that keeps a single number of the state; run folders do not contain it.

        Args:
            of: the row set of the models.
            field: an entry of `single`, or `STARTED`.
            place: index of the parameter in the network's order.
        """
        return f"_optimizer.{of}.{field}.{place}"

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the single numbers that each parameter has."""
        return (STARTED, *self.single)

    @property
    def row_sets(self) -> dict[str, str]:
        """Row sets of the states by name, with their first values."""
        return {self.row_set(of, field): "zeros" for of in self.models for field in self.shaped}

    @property
    def numbers(self) -> dict[str, float]:
        """Numbers of the states by name, with their first values."""
        return {
            self.number(of, field, place): 0.0
            for of in self.models
            for field in self.fields
            for place in range(self.parameters)
        }

    def check_models(self, name: str, objective: object) -> None:
        """Refuse to keep the optimizer of a row set that the objective does not declare.

        Args:
            name: the row set of the models.
            objective: the objective whose step updates them.

        Raises:
            UserError: the objective's `optimized` does not contain the row set.
        """
        if name not in self.models:
            rule = type(objective).__name__
            raise UserError(
                f"objective {rule} updates the row set '{name}' by the optimizer, whose state model.keep_optimizer "
                f"keeps; add the class attribute optimized = ('models', '{name}'), or drop model.keep_optimizer"
            )

    def check_state(self, state: Mapping[str, Any], shape: torch.Size) -> None:
        """Refuse a state with entries of other kinds than in the trial.

        Args:
            state: the state of a parameter, without values that are None.
            shape: the shape of the parameter.

        Raises:
            UserError: an entry is of another kind than in the trial; the message names it.
        """
        for name, value in state.items():
            if name in self.single:
                fits = not torch.is_tensor(value) or value.numel() == 1
            else:
                fits = name in self.shaped and torch.is_tensor(value) and value.shape == shape
            if not fits:
                raise UserError(
                    f"model.keep_optimizer: the state of {self.optimizer} has an entry '{name}' of another kind than "
                    "in its first two steps; set model.keep_optimizer to false"
                )


def present(state: Mapping[str, Any]) -> dict[str, Any]:
    """Drop the entries of a parameter's state that are None, which torch writes for options that are switched off."""
    return {name: value for name, value in state.items() if value is not None}


def single_number(value: float, kind: torch.dtype, device: torch.device) -> Tensor:
    """Make a tensor without dimensions, in which torch's optimizers hold a single number.

    Args:
        value: the number.
        kind: type of the tensor.
        device: device of the tensor; see `ClientOptimizer.device_of_numbers`.
    """
    return torch.full((), value, dtype=kind, device=device)
