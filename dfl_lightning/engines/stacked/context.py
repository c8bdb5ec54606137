"""Parts that all jobs of a stacked engine share."""

from __future__ import annotations

from dataclasses import dataclass

from dfl_lightning.bank.layout import Layout
from dfl_lightning.data import ClientData
from dfl_lightning.engines.config import EngineConfig
from dfl_lightning.engines.optimizing.optimizers import ClientOptimizer
from dfl_lightning.engines.stacked.loss import StackedLoss
from dfl_lightning.engines.stacked.networks.traced import StackedNetwork


@dataclass(frozen=True)
class StackedContext:
    """Parts of a stacked engine that all its jobs share.

    Args:
        config: see `EngineConfig`.
        layout: the columns of a row.
        data: the clients' resident data.
        network: the stacked forward pass.
        loss: the stacked loss.
        optimizer: factory of the user's optimizer for a client's parameters.
    """

    config: EngineConfig
    layout: Layout
    data: ClientData
    network: StackedNetwork
    loss: StackedLoss
    optimizer: ClientOptimizer
