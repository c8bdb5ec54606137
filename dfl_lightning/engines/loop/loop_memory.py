"""The state of a client's optimizer in the loop engine: from the bank into an optimizer of torch, and back."""

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
    """Hold the state of the optimizer of a client's model of one row set.

    Args:
        memory: the names of row sets and numbers.
        bank: that keeps them.
        owner: the client.
        of: the row set of the model.
        layout: columns of a row.

    Attributes:
        rows: of the state's row sets, [width] each by name.
        numbers: of the state, by name.
    """

    def __init__(self, memory: OptimizerMemory, bank: Bank, owner: int, of: str, layout: Layout) -> None:
        self._memory, self._of = memory, of
        self._entries = [entry for entry in layout.entries if not entry.is_buffer]
        place = bank.ranks.place[owner]
        names = [memory.row_set(of, field) for field in memory.shaped]
        self.rows = {name: bank.stored(name)[place].clone() for name in names}
        self._device = bank.stored("models").device
        self.numbers = {
            name: bank.number(name)[owner]
            for field in memory.fields
            for name in (memory.number(of, field, place) for place in range(memory.parameters))
        }

    def put_into(
        self, optimizer: torch.optim.Optimizer, parameters: Mapping[int, nn.Parameter], device: torch.device
    ) -> None:
        """Give the optimizer the state of parameters that have one; others begin anew.

        Args:
            optimizer: a fresh one.
            parameters: those that it updates, by their place in the network.
            device: where single numbers of a state lie.
        """
        memory, of = self._memory, self._of
        for place, parameter in parameters.items():
            if not self.numbers[memory.number(of, STARTED, place)]:
                continue
            entry = self._entries[place]
            state = {
                field: self.rows[memory.row_set(of, field)][entry.start : entry.stop].view(entry.shape).clone()
                for field in memory.shaped
            }
            for field, kind in memory.single.items():
                value = float(self.numbers[memory.number(of, field, place)])
                state[field] = single_number(value, kind, device)
            optimizer.state[parameter] = state

    def take_from(self, optimizer: torch.optim.Optimizer, parameters: Mapping[int, nn.Parameter]) -> None:
        """Remember the state of the parameters; what the optimizer does not update is left as it is.

        Args:
            optimizer: after its last step.
            parameters: those that it updates, by their place in the network.
        """
        memory, of = self._memory, self._of
        for place, parameter in parameters.items():
            state = present(optimizer.state.get(parameter, {}))
            memory.check_state(state, parameter.shape)
            if not state:
                continue
            entry = self._entries[place]
            self.numbers[memory.number(of, STARTED, place)] = torch.ones((), dtype=torch.float64)
            for field, value in state.items():
                if field in memory.single:
                    self.numbers[memory.number(of, field, place)] = torch.as_tensor(value).double()
                else:
                    self.rows[memory.row_set(of, field)][entry.start : entry.stop] = value.reshape(-1)

    def as_tensors(self) -> dict[str, Tensor]:
        """The numbers where the rows are, float64 scalars by name."""
        return {name: value.to(self._device) for name, value in self.numbers.items()}
