"""Optimizers of a cohort whose states are kept over rounds; clients with equal step counts step together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from dfl_lightning.bank.layout import Layout
from dfl_lightning.bank.references import References
from dfl_lightning.engines.optimizing.optimizer_memory import STARTED, OptimizerMemory, present, single_number
from dfl_lightning.engines.stacked.optimizer import PrefixOptimizer
from dfl_lightning.engines.stacked.parameters import Staging
from dfl_lightning.engines.stacked.parameters import memory as in_memory

if TYPE_CHECKING:
    from dfl_lightning.bank.bank import Bank


class KeptStates:
    """States of the optimizers that update a cohort's models of one row set.

    Args:
        memory: names under which the bank keeps states.
        of: the row set of the models.
        layout: the columns of a row.
        bank: the bank that keeps the states between rounds.
        owners: the clients of the job, in its order, long [c].
        device: device of a state's single numbers.

    Attributes:
        stagings: tensors of the states, by the name of their row set.
        single: single numbers of the states, float64 [parameters, c] by field.
    """

    def __init__(
        self, memory: OptimizerMemory, of: str, layout: Layout, bank: Bank, owners: Tensor, device: torch.device
    ) -> None:
        self.memory, self._of, self._device = memory, of, device
        names = {field: memory.row_set(of, field) for field in memory.shaped}
        self.stagings = {name: Staging(layout, bank.reader(References.rows(name, owners))) for name in names.values()}
        self._tensors = {field: list(map(in_memory, self.stagings[name].parameters())) for field, name in names.items()}
        self.single = {
            field: torch.stack([bank.number(name)[owners] for name in self._names(field)]) for field in memory.fields
        }

    @property
    def numbers(self) -> dict[str, Tensor]:
        """Clients' numbers of the states, float64 [c] by name."""
        return {
            name: values
            for field, several in self.single.items()
            for name, values in zip(self._names(field), several, strict=True)
        }

    def runs(self, places: Sequence[int]) -> list[tuple[int, int]]:
        """Divide the clients into runs [first, stop) of neighbours whose single numbers are equal.

        Args:
            places: indices of the parameters whose numbers are compared.
        """
        numbers = torch.cat([values[list(places)] for values in self.single.values()])
        differs = (numbers[:, 1:] != numbers[:, :-1]).any(0)
        edges = [0, *(torch.nonzero(differs).squeeze(1) + 1).tolist(), numbers.shape[1]]
        return list(pairwise(edges))

    def give(self, first: int, stop: int, places: Sequence[int]) -> list[dict[str, Any]]:
        """Return the states of a run of clients, views of `stagings`; empty for a parameter without a state.

        Args:
            first: index of the run's first client.
            stop: index after its last client.
            places: indices of the parameters.
        """

        def state(place: int) -> dict[str, Any]:
            if not self.single[STARTED][place, first]:
                return {}
            tensors = {field: several[place][first:stop] for field, several in self._tensors.items()}
            numbers = {
                field: single_number(float(self.single[field][place, first]), kind, self._device)
                for field, kind in self.memory.single.items()
            }
            return {**tensors, **numbers}

        return [state(place) for place in places]

    def take(self, first: int, stop: int, places: Sequence[int], states: Sequence[dict[str, Any]]) -> None:
        """Store the states of a run of clients.

        Args:
            first: index of the run's first client.
            stop: index after its last client.
            places: indices of the parameters.
            states: state of each parameter: tensors [stop - first, ...] and single numbers.
        """
        for place, whole in zip(places, states, strict=True):
            kept = {field: several[place][first:stop] for field, several in self._tensors.items()}
            state = present(whole)
            self.memory.check_state(state, next((tensor.shape for tensor in kept.values()), torch.Size()))
            if not state:
                continue
            self.single[STARTED][place, first:stop] = 1.0
            for field, value in state.items():
                if field in self.memory.single:
                    self.single[field][place, first:stop] = float(value)
                elif kept[field].data_ptr() != value.data_ptr():  # Otherwise the optimizer has written into it already.
                    kept[field].copy_(value)

    def finite(self) -> Tensor:
        """Return for each client whether its single numbers are free of NaN and infinity, bool [c]."""
        return torch.cat(list(self.single.values())).isfinite().all(0)

    def _names(self, field: str) -> list[str]:
        return [self.memory.number(self._of, field, place) for place in range(self.memory.parameters)]


@dataclass
class _Run:
    """Neighbouring clients with equal step counts, and their common optimizer.

    Args:
        first: index of the first client.
        stop: index after the last client that still has steps to do.
        optimizer: the optimizer of all of them.
    """

    first: int
    stop: int
    optimizer: PrefixOptimizer


class KeptOptimizer:
    """User's optimizer on k clients, which continues from the clients' kept states.

    Torch's optimizers have one count of steps for a stacked parameter. Clients that have dropped out in some rounds, or
    have more batches than others, have other counts. So each run of neighbours with equal counts has an optimizer of
    its own. If all clients always train with equally many batches, there is only one.

    Args:
        make: stacked parameters -> a fresh optimizer of them.
        states: the clients' states.
        places: indices of the parameters that the optimizer updates.
    """

    def __init__(
        self,
        make: Callable[[list[nn.Parameter]], torch.optim.Optimizer],
        states: KeptStates,
        places: Sequence[int],
    ) -> None:
        self._states, self._places = states, places
        self._runs = [
            _Run(first, stop, PrefixOptimizer(make).on_buffers(states.give(first, stop, places)))
            for first, stop in states.runs(places)
        ]

    def step(self, tensors: Sequence[Tensor], grads: Sequence[Tensor | None]) -> None:
        """Update the first k clients' parameters in place.

        Args:
            tensors: parameters, [k, *shape] each; k never grows within a phase.
            grads: their gradients, [k, *shape] each; None: the parameter is not changed.
        """
        clients = len(tensors[0])
        for run in self._runs:
            if clients < run.stop:  # Clients that have done all their steps leave the run.
                self._save(run)
                run.stop = max(run.first, clients)
            if run.first < run.stop:
                part = slice(run.first, run.stop)
                run.optimizer.step([t[part] for t in tensors], [None if g is None else g[part] for g in grads])

    def save(self) -> None:
        """Store the states after the last step."""
        for run in self._runs:
            self._save(run)

    def _save(self, run: _Run) -> None:
        if run.first < run.stop:
            self._states.take(run.first, run.stop, self._places, run.optimizer.states())
