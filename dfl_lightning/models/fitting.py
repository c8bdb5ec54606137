"""Does a network fit the data, the loss and the metrics? Found out on two inputs, before anything is trained."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torchmetrics import Metric

from dfl_lightning.bank.copies import copy_of
from dfl_lightning.bank.dropout_layers import check_no_global_draws, replace_dropout_layers
from dfl_lightning.bank.loss_trial import try_loss
from dfl_lightning.data import ClientData
from dfl_lightning.errors import UserError, reason
from dfl_lightning.models.network import Network
from dfl_lightning.plain_tensors import refuse_unusual


def fit_to_data(
    network: nn.Module,
    data: ClientData,
    loss: Callable[[Tensor, Tensor], Tensor],
    metrics: Mapping[str, Metric],
    seed: int,
) -> None:
    """Build a shipped network for the data's shape; try any network, the loss and the metrics on two inputs.

    Args:
        network: built in place if it is one of `dfl_lightning.models`; otherwise left as it is.
        data: the clients' data.
        loss: (scores [B, classes], labels [B]) -> mean loss.
        metrics: by name.
        seed: of a shipped network's first parameters.

    Raises:
        UserError: what does not fit, with both numbers.
    """
    shape, classes = tuple(data.input_shape), data.num_classes
    name = f"model.network {type(network).__name__}"
    if isinstance(network, Network):
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)  # torch.manual_seed would seed every GPU too
            network.build(shape, classes)
    if any(is_lazy(p) for p in network.parameters()):
        raise UserError(f"{name} has lazy layers, whose parameters do not exist yet; give them their input sizes")
    refuse_unusual(network)
    inputs, labels = torch.zeros(2, *shape), torch.zeros(2, dtype=torch.long)
    outputs = _outputs(network, inputs, name, shape)
    if not isinstance(outputs, Tensor) or outputs.dim() != 2 or outputs.shape[1] < classes:
        got = tuple(outputs.shape[1:]) if isinstance(outputs, Tensor) else type(outputs).__name__
        raise UserError(
            f"{name} returns {got} for an input, but the data has {classes} classes; "
            f"it must return [B, {classes}] class scores"
        )
    try_loss(loss, outputs, labels)
    for column, metric in metrics.items():
        try:
            trial = metric.clone()
            trial.update(outputs, labels)
            float(trial.compute())
        except Exception as error:
            raise UserError(
                f"model.metrics {type(metric).__name__} ({column}) fails on scores [B, {classes}] and labels [B]: "
                f"{reason(error)}"
            ) from error


def _outputs(network: nn.Module, inputs: Tensor, name: str, shape: tuple[int, ...]) -> object:
    trial = copy_of(network)
    replace_dropout_layers(trial)
    try:
        check_no_global_draws(trial, inputs)
        with torch.no_grad():
            return trial.eval()(inputs)
    except UserError:
        raise
    except Exception as error:  # whatever a user's network can raise
        raise UserError(
            f"{name} does not take inputs of shape {shape} as the data has them ({reason(error)})"
        ) from error
