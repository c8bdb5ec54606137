"""Scratch network of the loop engine, in which any client's row is trained and evaluated."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor, nn

from dfl_lightning.bank.layout import Layout
from dfl_lightning.data import ClientData
from dfl_lightning.engines.calling.adapted import prepare
from dfl_lightning.engines.config import EngineConfig
from dfl_lightning.engines.engine import ANY_SAMPLE, EVALUATION_BATCH
from dfl_lightning.engines.scoring.mean_scores import mean_scores, no_scores
from dfl_lightning.engines.scoring.prediction_rule import LabelledOutputs
from dfl_lightning.engines.trials.norm_strides import mend_instance_norms
from dfl_lightning.metrics import metrics_of
from dfl_lightning.utils.code.frozen import keep_frozen_norms, stand_ins
from dfl_lightning.utils.code.module_copies import copy_of
from dfl_lightning.utils.errors import UserError


class Scratch:
    """A copy of the run's network that can hold any client's row.

    Args:
        config: see `EngineConfig`.
        layout: the columns of a row.
        data: the clients' resident data.
        whole: evaluate all samples of a job in one batch.

    Attributes:
        features: inputs of the layers in `config.features` in the last forward pass, by their names.
        metrics: the chosen metrics, of the samples of the last `scores`.
    """

    def __init__(self, config: EngineConfig, layout: Layout, data: ClientData, whole: bool = False) -> None:
        self.config, self.layout, self.data, self._whole = config, layout, data, whole
        instead = stand_ins(config.network, layout.base)
        self.network = copy_of(config.network, instead).to(data.images.device, config.dtype)
        keep_frozen_norms(self.network)
        self.masks = prepare(self.network, config.calling)
        mend_instance_norms(self.network)
        self._parameters, self._buffers = dict(self.network.named_parameters()), dict(self.network.named_buffers())
        layers = dict(self.network.named_modules())
        split = {name: name.rpartition(".") for name in self._buffers}
        self._homes = {name: (layers[layer], leaf) for name, (layer, _, leaf) in split.items()}
        common = [entry.name for entry in layout.common if entry.is_buffer]
        self._versions = {name: self._buffers[name]._version for name in common}
        self.features: dict[str, Tensor] = {}
        for name, layer in config.features.items():
            layers[layer].register_forward_pre_hook(partial(self._keep_input, name))
        self.metrics = metrics_of(config.metrics, data.images.device)

    def _keep_input(self, name: str, layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        self.features[name] = inputs[0]

    def load(self, row: Tensor) -> list[Tensor]:
        """Make the network's parameters and buffers views of `row`, and return the parameters in the layout's order.

        Integers cannot be views of a float row. They are copied, and `store` copies integer buffers back.
        """
        parameters, buffers = self._parameters, self._buffers
        for name, (layer, leaf) in self._homes.items():
            if getattr(layer, leaf) is not buffers[name]:  # The last evaluation assigned another tensor.
                setattr(layer, leaf, buffers[name])
        for entry in self.layout.entries:
            view = row[entry.start : entry.stop].view(entry.shape)
            tensor = (buffers if entry.is_buffer else parameters)[entry.name]
            if entry.dtype.is_floating_point:
                tensor.data = view
            else:
                tensor.copy_(view.round())
        return [parameters[e.name] for e in self.layout.entries if not e.is_buffer]

    def store(self, row: Tensor) -> None:
        """Copy buffers that are not views of the row into it: integers, and tensors that a forward pass assigned."""
        for entry in self.layout.entries:
            if not entry.is_buffer:
                continue
            (layer, leaf), buffer = self._homes[entry.name], self._buffers[entry.name]
            present = getattr(layer, leaf)
            if present is not buffer:
                buffer.copy_(present)
                setattr(layer, leaf, buffer)
            if not entry.dtype.is_floating_point:
                row[entry.start : entry.stop] = buffer.reshape(-1).to(row.dtype)
        self._refuse_written()

    def _refuse_written(self) -> None:
        """Raise if a pass has written a buffer that is the same for all clients."""
        for name, version in self._versions.items():
            layer, leaf = self._homes[name]
            if getattr(layer, leaf) is not self._buffers[name] or self._buffers[name]._version != version:
                raise UserError(
                    f"model.network {type(self.config.network).__name__}: its forward pass writes the buffer '{name}', "
                    "which it did not in the trial before the run, so that all clients share it; write it in each "
                    "training pass, or not at all"
                )

    def scores(self, row: Tensor, samples: Tensor) -> Tensor:
        """Compute a model's mean loss (infinity instead of NaN), numbers, metrics and means of statistics.

        All are NaN without samples. The result stays on the row's device, so that the host need not wait for a GPU.

        Args:
            row: the model, [width].
            samples: indices of samples, long [s].

        Returns:
            float64 [1 + numbers + metrics + 1 + statistics]: the loss, the task's numbers, the metrics, the sum of the
            samples' weights, and the means of the task's statistics.
        """
        config = self.config
        if not len(samples):
            return no_scores(config, row.device, self.metrics)
        self.load(row)
        network = self.network.eval()

        def batches() -> Iterator[tuple[Tensor, Tensor]]:
            for part in (samples,) if self._whole else samples.split(EVALUATION_BATCH):
                x, y = self.data.batch(part, dtype=config.dtype)
                with config.arithmetic(x.device):
                    outputs = network(x)
                yield outputs.to(config.dtype), y

        return mean_scores(config.task, config.loss, self.metrics, batches())

    def outputs(self, row: Tensor, samples: Tensor) -> LabelledOutputs:
        """Compute a model's class scores and the inputs of the prediction's layers, float64, with the labels.

        Args:
            row: the model, [width].
            samples: indices of samples, long [s].
        """
        self.load(row)
        network, names = self.network.eval(), self.config.predicted_features
        some = samples if len(samples) else ANY_SAMPLE  # A network may fail on an empty batch.
        outputs: list[list[Tensor]] = []
        for part in (some,) if self._whole else some.split(EVALUATION_BATCH):
            x, y = self.data.batch(part, dtype=self.config.dtype)
            with self.config.arithmetic(x.device):
                scores = network(x)
            outputs.append([y, scores.double(), *(self.features[name].double() for name in names)])
        self.features.clear()
        labels, scores, *features = (torch.cat(parts)[: len(samples)] for parts in zip(*outputs, strict=True))
        return LabelledOutputs(scores, dict(zip(names, features, strict=True)), labels)
