"""What the jobs of a stacked engine have in common."""

from __future__ import annotations

from dataclasses import dataclass

from dfl_lightning.bank.layout import Layout
from dfl_lightning.data import ClientData
from dfl_lightning.engines.config import EngineConfig
from dfl_lightning.engines.optimizing.optimizers import ClientOptimizer
from dfl_lightning.engines.stacked.loss import StackedLoss
from dfl_lightning.engines.stacked.network import StackedNetwork


@dataclass(frozen=True)
class StackedContext:
    """What the jobs of an engine have in common.

    Args:
        config: see `EngineConfig`.
        layout: columns of a row.
        data: the clients' resident data.
        network: the stacked forward pass.
        loss: the stacked loss.
        optimizer: the user's, for any parameters of a client.
    """

    config: EngineConfig
    layout: Layout
    data: ClientData
    network: StackedNetwork
    loss: StackedLoss
    optimizer: ClientOptimizer
