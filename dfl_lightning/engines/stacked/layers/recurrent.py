"""Recurrent layers of k clients: side by side, or one call of torch's own function for each client.

Side by side, the inputs' part of the gates is one batched product over all steps, and each step is a batched product of
small matrices, with the entrywise operations of all clients at once; see `scans`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dfl_lightning.engines.recurrent_layers import one_layer, shapes_of_states, weight_names
from dfl_lightning.engines.stacked.layers.activation import Activation
from dfl_lightning.engines.stacked.layers.convolution import batched_product
from dfl_lightning.engines.stacked.layers.passes import Pass
from dfl_lightning.engines.stacked.layers.scans import GRUScan, LSTMScan, RNNScan

FUSED_UNITS, FUSED_STATES = 64, 1024
"""Largest number of units, and of units times samples, with which LSTMs are faster side by side on a CPU in float32.

There oneDNN has a kernel for all steps of one client, which torch does not use for other layers and types.
"""

Dropout = Callable[[Pass, nn.Module, Tensor], Tensor]
"""(pass, dropout layer, numbers [k, B, ...]) -> the numbers with a share of them dropped."""


def recurrent(dropout: Dropout) -> Callable[..., Any]:
    """Return the rule for `nn.RNN`, `nn.GRU` and `nn.LSTM`.

    Args:
        dropout: what drops entries between the layers.
    """

    def rule(layer: nn.RNNBase, name: str, now: Pass, x: Activation, hx: Any = None) -> Any:
        """Compute the layers inside one after the other; return outputs and last states as the torch layer does."""
        clients, single = x.clients, len(x.shape) == 2
        numbers = x.leading()  # [k, B, T, I] or [k, T, B, I]
        if single:  # One sequence without a batch.
            numbers = numbers.unsqueeze(1 if layer.batch_first else 2)
        if numbers.dim() != 4 or numbers.shape[-1] != layer.input_size:
            raise RuntimeError(f"{layer.mode} takes inputs of {layer.input_size} numbers a step, not {tuple(x.shape)}")
        steps_first = numbers.transpose(1, 2) if layer.batch_first else numbers  # [k, T, B, I]
        states = _states(layer, steps_first, clients, hx, single)
        directions, ends = 1 + layer.bidirectional, []
        for index in range(layer.num_layers):
            if index and layer.dropout and now.training:
                between: nn.Module = layer.between  # type: ignore[assignment]
                steps_first = dropout(now, between, steps_first.transpose(1, 2)).transpose(1, 2)
            weights = [[now.tensors[_full(name, leaf)] for leaf in names] for names in weight_names(layer, index)]
            mine = [state[:, index * directions : (index + 1) * directions] for state in states]
            compute = side_by_side if is_side_by_side(layer, steps_first) else client_by_client
            steps_first, after = compute(layer, steps_first, mine, weights, now.training)
            ends.append(after)
        last = [torch.cat(parts, 1) for parts in zip(*ends, strict=True)]
        out = steps_first.transpose(1, 2) if layer.batch_first else steps_first
        if single:
            out, last = out.squeeze(1 if layer.batch_first else 2), [state.squeeze(2) for state in last]
        whole = [Activation(state, clients) for state in last]
        return Activation(out, clients), (tuple(whole) if layer.mode == "LSTM" else whole[0])

    return rule


def is_side_by_side(layer: nn.RNNBase, steps_first: Tensor) -> bool:
    """Return True if clients are computed side by side; it depends on the layer, the batch and the device only.

    Args:
        layer: the layer of one client.
        steps_first: inputs, [k, T, B, I].
    """
    fused = layer.mode == "LSTM" and not layer.proj_size and steps_first.dtype == torch.float32
    if not fused or steps_first.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return True
    return layer.hidden_size <= FUSED_UNITS and steps_first.shape[2] * layer.hidden_size <= FUSED_STATES


def side_by_side(
    layer: nn.RNNBase, x: Tensor, states: Sequence[Tensor], weights: Sequence[Sequence[Tensor]], training: bool
) -> tuple[Tensor, list[Tensor]]:
    """Compute one of the layers inside for all clients at once.

    Args:
        layer: has the options.
        x: inputs, [k, T, B, I].
        states: states before the first step: hidden ones, and for an LSTM cells, [k, directions, B, H] each.
        weights: parameters of each direction, [k, ...] each, in the order of `weight_names`.
        training: not used: autograd knows which gradients are needed.

    Returns:
        Outputs, [k, T, B, directions * H], and the states after the last step.
    """
    outputs, ends = [], []
    device = x.device.type
    if torch.is_autocast_enabled(device):  # It does not apply to custom functions.
        lower = torch.get_autocast_dtype(device)
        x, states = x.to(lower), [state.to(lower) for state in states]
        weights = [[weight.to(lower) for weight in parameters] for parameters in weights]
    rows = x.reshape(len(x), -1, x.shape[-1])
    for direction, parameters in enumerate(weights):
        of_inputs, of_hidden, *others = parameters
        first = [state[:, direction] for state in states]
        reverse, bias, own_bias = bool(direction), None, None
        if layer.bias:
            bias, own_bias, *others = others
            if layer.mode == "GRU":  # The reset gate multiplies a part of the second bias.
                gates = 2 * layer.hidden_size
                bias = torch.cat([bias[:, :gates] + own_bias[:, :gates], bias[:, gates:]], 1)
                own_bias = own_bias[:, gates:]
            else:
                bias = bias + own_bias
        gates_of = batched_product(rows, of_inputs, bias).view(*x.shape[:3], -1)
        if layer.mode == "LSTM":
            out, cells = LSTMScan.apply(gates_of, of_hidden, others[0] if others else None, *first, reverse)
            after = [out[:, 0 if reverse else -1], cells]
        else:
            if layer.mode == "GRU":
                out = GRUScan.apply(gates_of, of_hidden, own_bias, *first, reverse)
            else:
                out = RNNScan.apply(gates_of, of_hidden, *first, layer.mode == "RNN_RELU", reverse)
            after = [out[:, 0 if reverse else -1]]
        outputs.append(out)
        ends.append(after)
    whole = outputs[0] if len(outputs) == 1 else torch.cat(outputs, -1)
    return whole, [torch.stack(parts, 1) for parts in zip(*ends, strict=True)]


def client_by_client(
    layer: nn.RNNBase, x: Tensor, states: Sequence[Tensor], weights: Sequence[Sequence[Tensor]], training: bool
) -> tuple[Tensor, list[Tensor]]:
    """Compute one of the layers inside by one call of torch's function for each client; see `side_by_side`.

    Args:
        layer: has the options.
        x: inputs, [k, T, B, I].
        states: states before the first step.
        weights: parameters of each direction.
        training: True if gradients may be needed.
    """
    batch = 1 if layer.batch_first else 2
    inputs = x.transpose(1, 2) if layer.batch_first else x
    flat = [tensor.unbind(0) for parameters in weights for tensor in parameters]
    of_clients = zip(inputs.unbind(0), zip(*(state.unbind(0) for state in states), strict=True), *flat, strict=True)
    outputs, ends = [], []
    for one, before, *parameters in of_clients:
        out, after = one_layer(layer, one, before, parameters, training)
        outputs.append(out)
        ends.append(after)
    whole = torch.stack(outputs)
    return (whole.transpose(1, 2) if batch == 1 else whole), [torch.stack(parts) for parts in zip(*ends, strict=True)]


def kept_numbers(layer: nn.RNNBase, shape: Sequence[int]) -> tuple[int, int]:
    """Count what a pass writes for its steps, in addition to outputs: gates and states; and the steps.

    Args:
        layer: the layer of one client.
        shape: shape of its inputs.

    Returns:
        The numbers, and the steps of all layers and directions.

    Examples:
        >>> kept_numbers(nn.LSTM(2, 5, batch_first=True, num_layers=2), (3, 7, 2))  # 2 layers, 3 samples, 7 steps
        (1680, 14)
    """
    time = 1 if layer.batch_first and len(shape) == 3 else 0
    steps = shape[time] * layer.num_layers * (1 + layer.bidirectional)
    of_step = {"LSTM": 8, "GRU": 8}.get(layer.mode, 2)  # Gates twice, and cells and their tanh, or the inner product.
    return math.prod(shape[:-1]) // shape[time] * steps * of_step * layer.hidden_size, steps


def _full(name: str, leaf: str) -> str:
    return f"{name}.{leaf}" if name else leaf


def _states(layer: nn.RNNBase, steps_first: Tensor, clients: int, hx: Any, single: bool) -> list[Tensor]:
    """Return the states before the first step, [k, layers * directions, B, H] each; zeros by default."""
    shapes = shapes_of_states(layer, steps_first.shape[2])
    if hx is None:
        return [steps_first.new_zeros(clients, *shape) for shape in shapes]
    states = []
    for state, shape in zip(hx if layer.mode == "LSTM" else [hx], shapes, strict=True):
        known = state if isinstance(state, Activation) else Activation(state.unsqueeze(0), 1)
        numbers = known.spread(clients).leading()
        numbers = numbers.unsqueeze(2) if single else numbers
        if numbers.shape[1:] != shape:  # Torch raises a similar error.
            raise RuntimeError(f"{layer.mode} takes a state of shape {shape}, not {tuple(numbers.shape[1:])}")
        states.append(numbers)
    return states
