"""What a step of one client costs in arithmetic and memory, counted and not timed."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from dfl_lightning.bank.layout import Layout
from dfl_lightning.engines.config import EngineConfig
from dfl_lightning.engines.stacked.network import StackedNetwork

CACHE_BYTES = 36e6
"""A cohort is so wide that a step of it touches about so much memory.

Wider ones leave the caches, and tensors of more than 32 MB go back to the system at every step; narrower ones pay more
for the overhead of a step.
"""

OVERHEAD = 8e-4
"""Seconds of Python and dispatch in one step of a cohort, on an ordinary core, for a network of few layers."""

FEW_CALLS = 12
"""Layers and functions, as LeNet has, up to which `OVERHEAD` holds; that of a network with more grows with them."""

ARITHMETIC, TRAFFIC = 50e9, 20e9
"""Operations and bytes a second of an ordinary core, as far as small networks get."""


@dataclass(frozen=True)
class Cost:
    """One client, one step.

    Args:
        activations: numbers that one sample makes on its way through the network.
        operations: of one sample's forward pass.
        calls: layers and functions that a forward pass calls.
        columns: numbers of a model.
        states: numbers that the optimizer keeps for each of a model.
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
        """Count on two samples.

        Args:
            network: the plain network.
            stacked: the same, stacked.
            example: two inputs, [2, ...].
            config: batch size and type of numbers.
            layout: columns of a row.
            states: numbers that the optimizer keeps for each of a model.
        """
        network.eval()
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            network(example)
        return cls(
            activations=stacked.activations(example) // len(example),
            operations=counter.get_total_flops() // len(example),
            calls=stacked.calls,
            columns=layout.width,
            states=states,
            batch_size=config.batch_size,
            itemsize=config.dtype.itemsize,
        )

    @property
    def bytes_per_client(self) -> int:
        """Activations and their gradients; the model, its gradient and the optimizer's state."""
        numbers = 2 * self.batch_size * self.activations + (2 + self.states) * self.columns
        return self.itemsize * numbers

    @property
    def widest(self) -> int:
        """Clients of a cohort at most: what the caches hold, or more where the overhead weighs more than they do."""
        return max(int(CACHE_BYTES // self.bytes_per_client), self._worth(OVERHEAD * max(1.0, self.calls / FEW_CALLS)))

    @property
    def narrowest(self) -> int:
        """Clients of a cohort at least: those of a network with many calls may pay more, so that threads have work."""
        return self._worth(OVERHEAD)

    def _worth(self, overhead: float) -> int:
        """Clients whose work is eight times the overhead of their step."""
        arithmetic = 3 * self.operations * self.batch_size / ARITHMETIC
        traffic = 20 * self.columns / TRAFFIC
        return max(1, round(8 * overhead / (arithmetic + traffic)))
