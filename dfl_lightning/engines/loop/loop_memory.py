"""Kept state of a client's optimizer in the loop engine: from the bank into an optimizer of torch, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from dfl_lightning.bank.layout import Layout
from dfl_lightning.engines.optimizing.optimizer_memory import STARTED, OptimizerMemory, present, single_number

if TYPE_CHECKING:
    from dfl_lightning.bank.bank import Bank


class LoopMemory:
    """State of the optimizer that updates a client's model of one row set.

    Args:
        memory: names under which the bank keeps states.
        bank: the bank that keeps states between rounds.
        owner: the client.
        of: the row set of the model.
        layout: the columns of a row.

    Attributes:
        rows: tensors of the state, one row [width] for all parameters, by the name of the bank's row set.
        numbers: single numbers of the state, scalars by the name of the bank's number.
    """

    def __init__(self, memory: OptimizerMemory, bank: Bank, owner: int, of: str, layout: Layout) -> None:
        self._memory, self._of = memory, of
        self._entries = [entry for entry in layout.entries if not entry.is_buffer]
        row = bank.ranks.place[owner]
        names = [memory.row_set(of, field) for field in memory.shaped]
        self.rows = {name: bank.stored(name)[row].clone() for name in names}
        self._device = bank.stored("models").device
        self.numbers = {
            name: bank.number(name)[owner]
            for field in memory.fields
            for name in (memory.number(of, field, index) for index in range(memory.parameters))
        }

    def put_into(
        self, optimizer: torch.optim.Optimizer, parameters: Mapping[int, nn.Parameter], device: torch.device
    ) -> None:
        """Give the optimizer the kept state of the parameters that have one; the others begin anew.

        Args:
            optimizer: a fresh optimizer.
            parameters: the parameters that it updates, by their index in the network's order.
            device: device of a state's single numbers.
        """
        memory, of = self._memory, self._of
        for index, parameter in parameters.items():
            if not self.numbers[memory.number(of, STARTED, index)]:
                continue
            entry = self._entries[index]
            state = {
                field: self.rows[memory.row_set(of, field)][entry.start : entry.stop].view(entry.shape).clone()
                for field in memory.shaped
            }
            for field, kind in memory.single.items():
                value = float(self.numbers[memory.number(of, field, index)])
                state[field] = single_number(value, kind, device)
            optimizer.state[parameter] = state

    def take_from(self, optimizer: torch.optim.Optimizer, parameters: Mapping[int, nn.Parameter]) -> None:
        """Copy the optimizer's state of the parameters into `rows` and `numbers`; other parameters keep theirs.

        Args:
            optimizer: the optimizer after its last step.
            parameters: the parameters that it updates, by their index in the network's order.
        """
        memory, of = self._memory, self._of
        for index, parameter in parameters.items():
            state = present(optimizer.state.get(parameter, {}))
            memory.check_state(state, parameter.shape)
            if not state:
                continue
            entry = self._entries[index]
            self.numbers[memory.number(of, STARTED, index)] = torch.ones((), dtype=torch.float64)
            for field, value in state.items():
                if field in memory.single:
                    self.numbers[memory.number(of, field, index)] = torch.as_tensor(value).double()
                else:
                    self.rows[memory.row_set(of, field)][entry.start : entry.stop] = value.reshape(-1)

    def as_tensors(self) -> dict[str, Tensor]:
        """Return the numbers on the device of the rows, float64 scalars by name."""
        return {name: value.to(self._device) for name, value in self.numbers.items()}
