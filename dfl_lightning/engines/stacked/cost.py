"""Cost of one client's step in arithmetic and memory, counted and not timed."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dfl_lightning.bank.layout import Layout
from dfl_lightning.engines.config import EngineConfig
from dfl_lightning.engines.stacked.networks.traced import StackedNetwork
from dfl_lightning.engines.trials.trial import operations_of

CACHE_BYTES = 36e6
"""Approximate bytes that one step of a cohort touches; they determine the cohort's width.

Wider cohorts do not fit the caches, and tensors of more than 32 MB go back to the system at every step; narrower ones
pay more for the overhead of a step.
"""

OVERHEAD = 8e-4
"""Seconds of Python and dispatch in one step of a cohort, on an ordinary core, for a network of few layers."""

FEW_CALLS = 12
"""Number of layers and functions, that of LeNet, up to which `OVERHEAD` holds; beyond it the overhead is proportional
to their number."""

ARITHMETIC, TRAFFIC = 50e9, 20e9
"""Operations and bytes that an ordinary core does in a second with small networks."""


@dataclass(frozen=True)
class Cost:
    """Cost of one step of one client.

    Args:
        activations: numbers that one sample's forward pass writes.
        operations: floating point operations of one sample's forward pass.
        calls: number of layers and functions that a forward pass calls.
        columns: numbers of a model.
        states: numbers that the optimizer keeps for each number of a model.
        batch_size: samples of a step.
        itemsize: bytes of a number.
    """

    activations: int
    operations: int
    calls: int
    columns: int
    states: int
    batch_size: int
    itemsize: int

    @classmethod
    def measure(
        cls,
        network: nn.Module,
        stacked: StackedNetwork,
        example: Tensor,
        config: EngineConfig,
        layout: Layout,
        states: int,
    ) -> Cost:
        """Count the cost by passes of two samples.

        Args:
            network: the network for one client.
            stacked: the stacked network.
            example: two inputs, [2, ...].
            config: has batch size and type of numbers.
            layout: the columns of a row.
            states: numbers that the optimizer keeps for each number of a model.
        """
        network.eval()
        with torch.no_grad():
            operations = operations_of(network, lambda: network(example))
        activations = stacked.activations(example)  # Before `calls`, for which it counts the steps.
        return cls(
            activations=activations // len(example),
            operations=operations // len(example),
            calls=stacked.calls,
            columns=layout.width,
            states=states,
            batch_size=config.batch_size,
            itemsize=config.dtype.itemsize,
        )

    @property
    def bytes_per_client(self) -> int:
        """Bytes of activations and their gradients, of the model, its gradient and the optimizer's state."""
        return self.bytes_with(self.batch_size)

    def bytes_with(self, batch_size: int) -> int:
        """Compute `bytes_per_client` for steps of another number of samples."""
        numbers = 2 * batch_size * self.activations + (2 + self.states) * self.columns
        return self.itemsize * numbers

    @property
    def widest(self) -> int:
        """Largest number of clients of a cohort: as many as the caches hold, or as make the overhead small."""
        return max(int(CACHE_BYTES // self.bytes_per_client), self._worth(OVERHEAD * max(1.0, self.calls / FEW_CALLS)))

    @property
    def narrowest(self) -> int:
        """Least number of clients of a cohort; it ignores the overhead of many calls, so that all threads have work."""
        return self._worth(OVERHEAD)

    def _worth(self, overhead: float) -> int:
        """Return the number of clients whose work is eight times the overhead of their step, in seconds."""
        arithmetic = 3 * self.operations * self.batch_size / ARITHMETIC
        traffic = 20 * self.columns / TRAFFIC
        return max(1, round(8 * overhead / (arithmetic + traffic)))
