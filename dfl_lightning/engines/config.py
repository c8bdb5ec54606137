"""The config of an engine: all that it needs to know about a run in addition to rows and data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from dfl_lightning.engines.calling.adapted import Calling
from dfl_lightning.engines.local_work import LocalRule
from dfl_lightning.engines.scoring.prediction_rule import PredictionRule
from dfl_lightning.tasks import Classification, Task


@dataclass(frozen=True)
class EngineConfig:
    """Description of local work: all that an engine needs to know in addition to rows and data.

    Args:
        network: the network whose parameters and buffers make a row; its own values are overwritten.
        optimizer: a `torch.optim` class with its arguments bound: parameters -> optimizer; see `ClientOptimizer`.
        loss: (outputs [B, ...], labels [B]) -> mean loss of the batch.
        metrics: torchmetrics by name, computed for each job.
        objective: the local training rule.
        batch_size: samples in a batch; the last batch of an epoch may be smaller.
        later_batch_sizes: those of later rounds, where batches grow (`model.batch_growth`).
        seed: the run's seed.
        dtype: type of rows and inputs.
        clip_norm: largest gradient norm of a client; None: no clipping.
        clip_value: largest absolute gradient entry; None: no clipping.
        reduced: type in which layers compute where torch's autocast allows it; rows stay in `dtype`.
        tf32: allow TensorFloat32 for products and convolutions on a GPU; see `float32_arithmetic`.
        cuda_graphs: record the steps of a GPU and replay them; `auto`: if that is faster.
        processes: number of processes that share the clients.
        cohorts: least number of cohorts; None: as many as are fast, on a GPU as few as its memory allows.
        room: bytes of a GPU that rows and data leave free, the least of all processes; None: not known.
        scheduled: options of the optimizer, in addition to `lr`, that change from round to round.
        keeps_optimizer: keep clients' optimizer states from round to round.
        prediction: the clients' prediction rule in the run's own evaluations; None: the network's scores.
        watched: layers whose inputs a selection reads: their names -> the selection that reads them.
        features: layers whose inputs the objective, the prediction or a selection reads: their names -> names of the
            network's layers.
        task: meaning of the network's outputs.
        base: values of the network's tensors that all clients share, by name; see `Layout.base`.
        calling: how the network is called.
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
    cuda_graphs: bool | Literal["auto"] = False
    processes: int = 1
    cohorts: int | None = None
    room: int | None = None
    scheduled: tuple[str, ...] = ()
    keeps_optimizer: bool = False
    prediction: PredictionRule | None = None
    watched: Mapping[str, str] = field(default_factory=dict)
    features: Mapping[str, str] = field(default_factory=dict)
    task: Task = field(default_factory=Classification)
    base: Mapping[str, Tensor] = field(default_factory=dict)
    calling: Calling = field(default_factory=Calling)
    later_batch_sizes: tuple[int, ...] = ()

    @property
    def largest_batch(self) -> int:
        """Samples of the largest batch of the run."""
        return max((self.batch_size, *self.later_batch_sizes))

    @property
    def predicted_features(self) -> tuple[str, ...]:
        """Names of the layers whose inputs the prediction or a selection reads."""
        own = () if self.prediction is None else self.prediction.features
        return tuple(dict.fromkeys((*own, *self.watched)))

    def arithmetic(self, device: torch.device) -> AbstractContextManager[Any]:
        """Return the context of the present thread's forward passes and losses: autocast to `reduced`, or none."""
        return nullcontext() if self.reduced is None else torch.autocast(device.type, self.reduced)
