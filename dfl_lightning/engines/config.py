"""What an engine needs to know about a run besides rows and data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from dfl_lightning.engines.local_work import LocalRule
from dfl_lightning.engines.scoring.prediction_rule import PredictionRule
from dfl_lightning.tasks import Classification, Task


@dataclass(frozen=True)
class EngineConfig:
    """Everything an engine needs to know about local work besides rows and data.

    Args:
        network: the plain network that rows are rows of; its own parameters are a scratch pad.
        optimizer: a `torch.optim` class with its arguments bound: parameters -> optimizer; see `ClientOptimizer`.
        loss: (outputs [B, ...], labels [B]) -> mean loss of the batch.
        metrics: torchmetrics by name, computed for each job.
        objective: the local training rule.
        batch_size: samples in a batch; the last one of an epoch may be smaller.
        seed: the run's seed.
        dtype: of rows and inputs.
        clip_norm: largest gradient norm of a client; None: no clipping.
        clip_value: largest absolute gradient entry; None: no clipping.
        reduced: layers compute in this type where torch's autocast finds it good enough; rows stay in `dtype`.
        tf32: on a GPU, products and convolutions may be TensorFloat32; see `float32_arithmetic`.
        cuda_graphs: record the steps of a GPU and replay them.
        processes: that share the clients.
        cohorts: least number of cohorts; None: as many as are fast, on a GPU as few as its memory has room for.
        room: bytes of a GPU that are free beside rows and data, the least of all processes; None: not known.
        scheduled: options of the optimizer, beside `lr`, that change from round to round.
        keeps_optimizer: clients' optimizer states go on from round to round.
        prediction: how clients predict in the run's own evaluations; None: by the network's scores.
        watched: layers whose inputs a selection wants: their names -> who wants them.
        features: layers whose inputs the objective, the prediction or a selection wants: their names -> names of the
            network's layers.
        task: what the network's outputs mean.
    """

    network: nn.Module
    optimizer: Callable[..., torch.optim.Optimizer]
    loss: Callable[[Tensor, Tensor], Tensor]
    metrics: dict[str, Any]
    objective: LocalRule
    batch_size: int
    seed: int
    dtype: torch.dtype = torch.float32
    clip_norm: float | None = None
    clip_value: float | None = None
    reduced: torch.dtype | None = None
    tf32: bool = False
    cuda_graphs: bool = False
    processes: int = 1
    cohorts: int | None = None
    room: int | None = None
    scheduled: tuple[str, ...] = ()
    keeps_optimizer: bool = False
    prediction: PredictionRule | None = None
    watched: Mapping[str, str] = field(default_factory=dict)
    features: Mapping[str, str] = field(default_factory=dict)
    task: Task = field(default_factory=Classification)

    @property
    def predicted_features(self) -> tuple[str, ...]:
        """Layers whose inputs the prediction or a selection wants, by their names."""
        own = () if self.prediction is None else self.prediction.features
        return tuple(dict.fromkeys((*own, *self.watched)))

    def arithmetic(self, device: torch.device) -> AbstractContextManager[Any]:
        """The context of forward passes and losses in the present thread."""
        return nullcontext() if self.reduced is None else torch.autocast(device.type, self.reduced)
