"""Optimizers of a cohort whose states last over rounds: clients whose states count alike take their steps together."""

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
    """Hold the states of the optimizers of a cohort's models of one row set.

    Args:
        memory: the names of row sets and numbers.
        of: the row set of the models.
        layout: columns of a row.
        bank: that keeps the states.
        owners: the clients of the job, in its order, long [c].
        device: where single numbers of a state lie.

    Attributes:
        stagings: tensors of the state, by the name of their row set.
        single: single numbers of the state, float64 [parameters, c] by field.
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
        """The clients' numbers, float64 [c] by name."""
        return {
            name: values
            for field, several in self.single.items()
            for name, values in zip(self._names(field), several, strict=True)
        }

    def runs(self, places: Sequence[int]) -> list[tuple[int, int]]:
        """Return clients [first, stop) in a row whose single numbers are the same.

        Args:
            places: the parameters that count.
        """
        numbers = torch.cat([values[list(places)] for values in self.single.values()])
        differs = (numbers[:, 1:] != numbers[:, :-1]).any(0)
        edges = [0, *(torch.nonzero(differs).squeeze(1) + 1).tolist(), numbers.shape[1]]
        return list(pairwise(edges))

    def give(self, first: int, stop: int, places: Sequence[int]) -> list[dict[str, Any]]:
        """Return the states of a run of clients, views of `stagings`; empty for a parameter that has none yet.

        Args:
            first: the run's first client.
            stop: the one after its last.
            places: the parameters.
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
        """Remember the states of clients.

        Args:
            first: the first of them.
            stop: the one after the last.
            places: the parameters.
            states: of each parameter, tensors [stop - first, ...] and single numbers.
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
                elif kept[field].data_ptr() != value.data_ptr():  # else the optimizer has written into it
                    kept[field].copy_(value)

    def finite(self) -> Tensor:
        """Which clients' single numbers are free of NaN and infinity, bool [c]."""
        return torch.cat(list(self.single.values())).isfinite().all(0)

    def _names(self, field: str) -> list[str]:
        return [self.memory.number(self._of, field, place) for place in range(self.memory.parameters)]


@dataclass
class _Run:
    """Clients whose states count alike, and their optimizer.

    Args:
        first: the first client.
        stop: the one after the last that still has steps to do.
        optimizer: of all of them.
    """

    first: int
    stop: int
    optimizer: PrefixOptimizer


class KeptOptimizer:
    """The user's optimizer on k clients, going on from the states that are kept of them.

    Torch's optimizers have one count of steps for a stacked parameter. Clients that have been down now and then, or
    have more batches than others, have other counts; so each run of clients with the same numbers has an optimizer of
    its own. In a federation where all clients always train, with equally many batches, that is a single one.

    Args:
        make: stacked parameters -> a fresh optimizer of them.
        states: of the clients.
        places: the parameters that it updates.
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
            grads: their gradients, [k, *shape] each; None: the parameter stays as it is.
        """
        clients = len(tensors[0])
        for run in self._runs:
            if clients < run.stop:  # who has done all steps is left out from now on
                self._save(run)
                run.stop = max(run.first, clients)
            if run.first < run.stop:
                part = slice(run.first, run.stop)
                run.optimizer.step([t[part] for t in tensors], [None if g is None else g[part] for g in grads])

    def save(self) -> None:
        """Remember the states after the last step."""
        for run in self._runs:
            self._save(run)

    def _save(self, run: _Run) -> None:
        if run.first < run.stop:
            self._states.take(run.first, run.stop, self._places, run.optimizer.states())
