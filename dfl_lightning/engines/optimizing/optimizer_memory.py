"""Name the states of optimizers that the bank keeps from round to round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dfl_lightning.engines.optimizing.optimizers import ClientOptimizer
from dfl_lightning.utils.errors import UserError

STARTED = "started"
"""The number of a parameter that says whether the optimizer has a state for it: 1, or 0 before its first step."""


@dataclass(frozen=True)
class OptimizerMemory:
    """Hold the names under which the bank keeps the state of every client's optimizers.

    Torch's optimizers have a state for each parameter, made at the parameter's first step. Tensors of the parameter's
    shape become row sets, a row a client. Single numbers, such as Adam's count of steps, become numbers of the client,
    one for each parameter: parameters may have taken different numbers of steps.

    Args:
        shaped: names of the tensors that have the parameter's shape, such as `exp_avg`.
        single: names of the single numbers, such as `step`, each with its type.
        models: row sets whose models have an optimizer; each has one of its own.
        parameters: how many parameters the network has.
        optimizer: its name, for messages.
    """

    shaped: tuple[str, ...]
    single: Mapping[str, torch.dtype]
    models: tuple[str, ...]
    parameters: int
    optimizer: str

    @classmethod
    def of(cls, optimizer: ClientOptimizer, models: Sequence[str], parameters: int) -> OptimizerMemory | None:
        """Find by a trial what the optimizer remembers.

        Args:
            optimizer: the user's.
            models: row sets whose models are trained by it.
            parameters: how many parameters the network has.

        Returns:
            None where it remembers nothing: SGD without momentum.

        Raises:
            UserError: it remembers something else than tensors of a parameter's shape and single numbers.
        """
        fields = optimizer.remembered()
        if not fields:
            return None
        shaped = tuple(name for name, kind in fields.items() if kind is None)
        single = {name: kind for name, kind in fields.items() if kind is not None}
        return cls(shaped, single, tuple(models), parameters, optimizer.name)

    def row_set(self, of: str, field: str) -> str:
        """Name the row set of a tensor.

        Args:
            of: the row set of the models.
            field: of `shaped`.
        """
        return f"optimizer.{field}" if of == "models" else f"optimizer.{of}.{field}"

    def number(self, of: str, field: str, place: int) -> str:
        """Name the clients' number; run folders do not have it.

        Args:
            of: the row set of the models.
            field: of `single`, or `STARTED`.
            place: which of the network's parameters.
        """
        return f"_optimizer.{of}.{field}.{place}"

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the numbers of each parameter."""
        return (STARTED, *self.single)

    @property
    def row_sets(self) -> dict[str, str]:
        """Row sets by name, and what they begin as."""
        return {self.row_set(of, field): "zeros" for of in self.models for field in self.shaped}

    @property
    def numbers(self) -> dict[str, float]:
        """The clients' numbers by name, and what they begin as."""
        return {
            self.number(of, field, place): 0.0
            for of in self.models
            for field in self.fields
            for place in range(self.parameters)
        }

    def check_models(self, name: str, objective: object) -> None:
        """Refuse the optimizer of models for which there is no room.

        Args:
            name: the row set of the models.
            objective: whose step updates them.

        Raises:
            UserError: the objective does not declare them in `optimized`.
        """
        if name not in self.models:
            rule = type(objective).__name__
            raise UserError(
                f"objective {rule} updates the row set '{name}' by the optimizer, whose state model.keep_optimizer "
                f"keeps; give it optimized = ('models', '{name}'), or drop model.keep_optimizer"
            )

    def check_state(self, state: Mapping[str, Any], shape: torch.Size) -> None:
        """Refuse a state that has become another one than in the trial.

        Args:
            state: of a parameter, without values that are None.
            shape: of the parameter.

        Raises:
            UserError: names what there is no room for.
        """
        for name, value in state.items():
            if name in self.single:
                known = not torch.is_tensor(value) or value.numel() == 1
            else:
                known = name in self.shaped and torch.is_tensor(value) and value.shape == shape
            if not known:
                raise UserError(
                    f"model.keep_optimizer: {self.optimizer} remembers '{name}' of another kind than in its first two "
                    "steps; set model.keep_optimizer to false"
                )


def present(state: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of a parameter's state that are there: torch writes None for what an option switches off."""
    return {name: value for name, value in state.items() if value is not None}


def single_number(value: float, kind: torch.dtype, device: torch.device) -> Tensor:
    """A single number as torch's optimizers hold it, a tensor without dimensions.

    Args:
        value: the number.
        kind: its type.
        device: where it lies; see `ClientOptimizer.device_of_numbers`.
    """
    return torch.full((), value, dtype=kind, device=device)
