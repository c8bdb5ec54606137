"""Torch's recurrent layers, one of their layers at a time, with dropout between them by masks of a client's own key.

`nn.RNN`, `nn.GRU` and `nn.LSTM` with `dropout` draw from torch's global generator, inside of one call for all layers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from dfl_lightning.utils.errors import UserError

_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "RNN_TANH": torch.rnn_tanh,
    "RNN_RELU": torch.rnn_relu,
    "GRU": torch.gru,
    "LSTM": torch.lstm,
}


def weight_names(layer: nn.RNNBase, index: int) -> list[list[str]]:
    """Return the names of the parameters of one layer, for each direction, in the order of torch's functions.

    Args:
        layer: the recurrent layer, which may have several layers inside.
        index: the layer inside, from 0.

    Examples:
        >>> weight_names(nn.GRU(2, 3, bias=False, bidirectional=True), 0)
        [['weight_ih_l0', 'weight_hh_l0'], ['weight_ih_l0_reverse', 'weight_hh_l0_reverse']]
    """
    kinds = ["weight_ih", "weight_hh", *(["bias_ih", "bias_hh"] if layer.bias else [])]
    kinds += ["weight_hr"] if layer.proj_size else []
    ends = [f"_l{index}", f"_l{index}_reverse"][: 1 + layer.bidirectional]
    return [[kind + end for kind in kinds] for end in ends]


def one_layer(
    layer: nn.RNNBase, x: Tensor, states: Sequence[Tensor], weights: list[Tensor], training: bool
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Compute one of the layers inside of a recurrent layer by torch's own function.

    Args:
        layer: has the options.
        x: input of the layer inside, [B, T, I], or [T, B, I] unless `batch_first`.
        states: states before the first step: hidden ones, and for an LSTM cells, [directions, B, H] each.
        weights: the layer's parameters, in the order of `weight_names`.
        training: True if gradients may be needed.

    Returns:
        Outputs, [B, T, directions * H] or [T, B, directions * H], and the states after the last step.
    """
    before = tuple(states) if layer.mode == "LSTM" else states[0]
    options = (layer.bias, 1, 0.0, training, layer.bidirectional, layer.batch_first)
    out, *after = _FUNCTIONS[layer.mode](x, before, weights, *options)
    return out, tuple(after)


class _DropsBetween(nn.RNNBase):
    """Recurrent layer that drops entries between its layers by `between`, a layer of its own."""

    between: nn.Module

    def forward(self, input: Any, hx: Any = None) -> Any:
        """Compute the layers one after the other; see the torch layer for shapes."""
        if not self.training:
            return super().forward(input, hx)
        if isinstance(input, PackedSequence):
            raise UserError(
                f"{self.mode} with dropout between its layers got a packed sequence, whose masks cannot be drawn; "
                "give it the padded sequences, or use dropout: 0 and nn.Dropout layers"
            )
        batch, single = 0 if self.batch_first else 1, input.dim() == 2
        x = input.unsqueeze(batch) if single else input
        states = self._states(x, batch, hx, single)
        self.check_forward_args(x, tuple(states) if self.mode == "LSTM" else states[0], None)  # type: ignore[arg-type]
        ends = []
        for index in range(self.num_layers):
            if index:
                x = x.transpose(0, batch)  # A mask has the samples first, so that padding does not change it.
                x = self.between(x).transpose(0, batch)
            weights = [getattr(self, name) for names in weight_names(self, index) for name in names]
            directions = 1 + self.bidirectional
            part = slice(index * directions, (index + 1) * directions)
            x, after = one_layer(self, x, [state[part] for state in states], weights, True)
            ends.append(after)
        whole = [torch.cat(parts) for parts in zip(*ends, strict=True)]
        whole = [state.squeeze(1) for state in whole] if single else whole
        return (x.squeeze(batch) if single else x), (tuple(whole) if self.mode == "LSTM" else whole[0])

    def _states(self, x: Tensor, batch: int, hx: Any, single: bool) -> list[Tensor]:
        """Return the states before the first step, [layers * directions, B, H] each; zeros by default."""
        given = [] if hx is None else list(hx) if self.mode == "LSTM" else [hx]
        if given:
            return [state.unsqueeze(1) for state in given] if single else given
        return [x.new_zeros(shape) for shape in shapes_of_states(self, x.shape[batch])]


def shapes_of_states(layer: nn.RNNBase, batch: int) -> list[tuple[int, int, int]]:
    """Return the shapes of a recurrent layer's states: hidden ones, and for an LSTM those of the cells.

    Args:
        layer: the layer.
        batch: number of samples, B.

    Examples:
        >>> shapes_of_states(nn.LSTM(2, 5, num_layers=3, proj_size=4), batch=8)
        [(3, 8, 4), (3, 8, 5)]
    """
    count = layer.num_layers * (1 + layer.bidirectional)
    hidden = (count, batch, layer.proj_size or layer.hidden_size)
    return [hidden, (count, batch, layer.hidden_size)] if layer.mode == "LSTM" else [hidden]


class StreamRNN(_DropsBetween, nn.RNN):
    """`nn.RNN` with masks of its own between its layers."""


class StreamGRU(_DropsBetween, nn.GRU):
    """`nn.GRU` with masks of its own between its layers."""


class StreamLSTM(_DropsBetween, nn.LSTM):
    """`nn.LSTM` with masks of its own between its layers."""


STREAMS: dict[type[nn.Module], type[nn.Module]] = {nn.RNN: StreamRNN, nn.GRU: StreamGRU, nn.LSTM: StreamLSTM}
"""Torch's recurrent layers, and those with masks of their own."""


def draws_between(layer: nn.Module) -> bool:
    """Return True if a layer is one of torch's recurrent layers that draws masks in training."""
    return type(layer) in STREAMS and cast("nn.RNNBase", layer).dropout > 0 and cast("nn.RNNBase", layer).num_layers > 1


def draw_between(layer: nn.Module, dropout: nn.Module) -> None:
    """Let a recurrent layer of torch, in place, drop entries between its layers by a layer of its own.

    Args:
        layer: a layer for which `draws_between` is true.
        dropout: the dropout layer.
    """
    layer.__class__ = STREAMS[type(layer)]
    layer.between = dropout
