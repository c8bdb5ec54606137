"""Check, before training, that a network fits the data, the loss and the metrics, by a trial on two samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torchmetrics import Metric

from dfl_lightning.data import ClientData
from dfl_lightning.engines.calling.adapted import Calling
from dfl_lightning.engines.calling.finding import evaluated, find_calling
from dfl_lightning.engines.optimizing.optimizers import name_of as called
from dfl_lightning.engines.placing import placed, refuse_untrained
from dfl_lightning.engines.trials.loss_trial import try_loss
from dfl_lightning.metrics import try_metric
from dfl_lightning.metrics.trial import said
from dfl_lightning.models.network import Network
from dfl_lightning.tasks import Classification, MeanLoss, Task, default_task
from dfl_lightning.utils.errors import UserError, reason, reported_as
from dfl_lightning.utils.plain_tensors import refuse_unusual
from dfl_lightning.utils.randomness.global_generators import name_of, no_global_draws
from dfl_lightning.utils.randomness.random_streams import stream

REMEDIES = {
    "no padding token is defined": "give pad_token_id in the network's config",
    "decoder_start_token_id": "give decoder_start_token_id in the network's config",
    "must have the same dtype": "call .float() on the network (trainer.precision: 64-true computes in float64)",
    "index out of range in self": "an nn.Embedding has too few rows for the data's numbers (vocab_size)",
}
"""Parts of torch's and transformers' messages about a network's inputs, and what to do or to look at."""


def fit_to_data(
    network: nn.Module,
    data: ClientData,
    loss: Callable[[Tensor, Tensor], Tensor],
    metrics: Mapping[str, Metric],
    seed: int,
    task: Task | None = None,
) -> tuple[tuple[int, ...], Calling]:
    """Build a shipped network for the data's shape, and try the network, the loss and the metrics on two samples.

    Args:
        network: built in place if it is one of `dfl_lightning.models`; other networks do not change.
        data: the clients' data.
        loss: (outputs [B, ...], targets [B, ...]) -> mean loss.
        metrics: metrics by the name of their column.
        seed: seed of the run, from which the first parameters of a shipped network are drawn.
        task: None: the default task for the data's targets.

    Returns:
        The shape of the network's output for one sample, and how the network is called.

    Raises:
        UserError: shapes do not fit, something fails on the samples, or draws could not be repeated.
    """
    task = default_task(data.labels, data.num_classes) if task is None else task
    shape, wanted = tuple(data.input_shape), task.output_shape(data.labels, data.num_classes)
    name = f"model.network {type(network).__name__}"
    if isinstance(network, Network):
        if data.parts is not None:
            if data.parts.takes_apart and not network.takes_parts:
                raise UserError(f"{name} takes one tensor, and the data has {data.parts}; use a network of your own")
            shape = data.parts.each[0].shape
        network.read_categories(data.categories)
        network.draw(shape, wanted[-1] if wanted else 1, seed)
    if any(is_lazy(p) for p in network.parameters()):
        raise UserError(f"{name} has lazy layers, whose parameters do not exist yet; give them their input sizes")
    refuse_unusual(network)
    inputs, labels = _samples(data, _two_of_a_client(data), seed)
    kind = f"of shape {shape}" if data.parts is None else str(data.parts)
    wants = f"{name} does not take inputs {kind} as the data has them"
    with reported_as(lambda error: UserError(f"{wants} ({reason(error)}){_remedy(error, network, data)}")):
        calling, outputs = find_calling(network, inputs, data.parts)
    _refuse_outputs(name, outputs, wanted, task)
    assert isinstance(outputs, Tensor)
    refuse_untrained(loss)
    with no_global_draws(partial(_describe_draws, f"model.loss {called(loss)}", _arguments(task))):
        given = labels if isinstance(loss, MeanLoss) else task.loss_targets(labels)
        try_loss(placed(loss, outputs.device, outputs.dtype), outputs, given)
    for column, metric in metrics.items():
        draws = partial(_describe_draws, f"model.metrics {said(column, metric)}", _arguments(task))
        try:
            try_metric(column, metric, outputs, labels, task, draws)
        except UserError:  # two samples may be too few, or alike
            inputs, labels_of_many = _samples(data, _some_of_all_clients(data), seed)
            with reported_as(lambda error: UserError(f"{wants} ({reason(error)}){_remedy(error, network, data)}")):
                many = evaluated(network, calling, inputs)
            assert isinstance(many, Tensor)
            try_metric(column, metric, many, labels_of_many, task, draws)
    return tuple(outputs.shape[1:]), calling


def _remedy(error: Exception, network: nn.Module, data: ClientData) -> str:
    """Return what helps against an error of a forward pass, to be appended to its message; empty if unknown."""
    shapes = [tuple(data.input_shape)] if data.parts is None else [part.shape for part in data.parts.each]
    longest = max((shape[0] for shape in shapes if len(shape) == 1), default=0)
    positions = [getattr(getattr(m, "config", None), "max_position_embeddings", None) for m in network.modules()]
    fewest = min((number for number in positions if isinstance(number, int)), default=longest)
    if longest > fewest:  # a network of transformers, whose error names neither
        return (
            f"; a sequence has {longest} tokens, and the network {fewest} positions (max_position_embeddings): cut the "
            "sequences, or make the config's number larger"
        )
    return next((f"; {remedy}" for part, remedy in REMEDIES.items() if part in str(error)), "")


def _refuse_outputs(name: str, outputs: object, wanted: tuple[int, ...], task: Task) -> None:
    """Raise if the outputs of a network do not have the shape that the task wants.

    A classifier may have more scores than there are classes.
    """
    got = tuple(outputs.shape[1:]) if isinstance(outputs, Tensor) else type(outputs).__name__
    if not isinstance(task, Classification):
        if got != wanted:
            raise UserError(
                f"{name} returns {got} for an input; for model.task {type(task).__name__} on these data it must return "
                f"{['B', *wanted]}".replace("'", "")
            )
        return
    (classes,) = wanted
    if isinstance(got, str) or len(got) != 1 or got[0] < classes:
        raise UserError(
            f"{name} returns {got} for an input, but the data has {classes} classes; "
            f"it must return [B, {classes}] class scores"
        )


def _arguments(task: Task) -> str:
    """Name the arguments that losses and metrics may depend on, for messages."""
    return "of scores and labels" if task.has_classes else "of outputs and targets"


def _two_of_a_client(data: ClientData) -> Tensor:
    """Return the indices of the first and last training sample of the first client with data."""
    samples: Tensor = next(part for part in data.train if len(part))
    return samples[torch.tensor([0, -1])]


def _some_of_all_clients(data: ClientData, most: int = 64) -> Tensor:
    """Return the indices of at most `most` training samples, about as many of each client."""
    parts = [part for part in data.train if len(part)]
    each = -(-most // len(parts))
    return torch.cat([part[:each] for part in parts])[:most]


def _samples(data: ClientData, samples: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Return inputs [k, ...] and labels [k], augmented as in training.

    Infinite and NaN inputs are replaced by 0, as they would look like a fault of the network.

    Args:
        data: the clients' data.
        samples: indices of the samples, long [k].
        seed: seed of the run.
    """
    draws, augment = None, data.augment
    who = f"augmentation {name_of(augment)}"
    with no_global_draws(partial(_describe_draws, who, "of the batch and its generator")):
        if augment is not None:
            draws = augment.draw(len(samples), stream(seed, "try out"))
        inputs, labels = data.batch(samples, draws=draws)
    return inputs.where(inputs.isfinite(), 0.0), labels


def _describe_draws(who: str, arguments: str, generators: str) -> str:
    """Explain, for a message, that draws from global generators make a run unrepeatable."""
    return f"{who} draws from {generators}, so its runs could not be repeated; it must be a function {arguments} only"
