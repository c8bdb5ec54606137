"""Random functions of torch whose draws come from a `MaskSource` instead of torch's global generator.

`OwnDraws` replaces calls such as `F.dropout(x)` while a network's forward pass runs, in the present thread only. Its
masks are those of `nn.Dropout` layers: functions of the client, the step and the number of the call. The first
dimension of a tensor is that of samples; if the source has the keys of k clients, it is read as [k, B].
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from dfl_lightning.engines.dropout_layers import MaskSource

_ALPHA = 1.7580993408473766
"""Negative limit of SELU, to which alpha dropout sets an entry."""

_MULTI_HEAD = inspect.signature(F.multi_head_attention_forward)


class OwnDraws(TorchFunctionMode):
    """Context in which the functions of `OWN` draw from a source of masks; other functions are called as they are.

    Args:
        source: the source, prepared by `begin` for this pass.
        explicit: compute attention from its weights even if nothing is dropped, for `torch.vmap`, which does not
            support torch's fast kernels.
    """

    def __init__(self, source: MaskSource, explicit: bool = False) -> None:
        super().__init__()
        self._source, self._own = source, {**OWN, **_EXPLICIT} if explicit else OWN

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function of torch, or its replacement."""
        own = self._own.get(func)
        if own is None:
            return func(*args, **(kwargs or {}))
        before = self._source.call
        result = own(self._source, func, *args, **(kwargs or {}))
        self._source.functional |= self._source.call > before
        return result


def _scaled(source: MaskSource, x: Tensor, shape: tuple[int, ...], p: float) -> Tensor:
    """Return the factors of a dropout of `x`: 0 for a share p, 1 / (1 - p) for the others; [*shape]."""
    keep = source.keep(shape, p, x.device)
    return keep.to(x.dtype) / (1 - p) if p < 1 else torch.zeros_like(keep, dtype=x.dtype)


def _times(x: Tensor, factors: Tensor, inplace: bool) -> Tensor:
    return x.mul_(factors) if inplace else x * factors


def _dropout(
    source: MaskSource, function: Callable[..., Tensor], input: Tensor, p: float = 0.5, *args: Any, **kwargs: Any
) -> Tensor:
    training, inplace = _options(function, *args, **kwargs)
    if not training or not 0 < p <= 1:
        return function(input, p, *args, **kwargs)
    return _times(input, _scaled(source, input, tuple(input.shape), p), inplace)


def _feature_dropout(
    source: MaskSource, function: Callable[..., Tensor], input: Tensor, p: float = 0.5, *args: Any, **kwargs: Any
) -> Tensor:
    training, inplace = _options(function, *args, **kwargs)
    if not training or not 0 < p <= 1:
        return function(input, p, *args, **kwargs)
    return _times(input, _scaled(source, input, _of_channels(function, input), p), inplace)


def _of_channels(function: Callable[..., Tensor], x: Tensor) -> tuple[int, ...]:
    """Return the shape of a mask of whole channels; `dropout1d` and `dropout3d` accept an input without a batch."""
    alone = {F.dropout1d: 2, F.dropout3d: 4}.get(function) == x.dim()
    kept = 1 if alone else 2
    return (*x.shape[:kept], *[1] * (x.dim() - kept))


def _alpha_dropout(
    source: MaskSource, function: Callable[..., Tensor], input: Tensor, p: float = 0.5, *args: Any, **kwargs: Any
) -> Tensor:
    """Set entries to SELU's limit, and keep mean and variance (Klambauer et al., 2017)."""
    training, inplace = _options(function, *args, **kwargs)
    if not training or not 0 < p < 1:
        return function(input, p, *args, **kwargs)
    by_channel = function in (F.feature_alpha_dropout, torch.feature_alpha_dropout, torch.feature_alpha_dropout_)
    shape = _of_channels(function, input) if by_channel else tuple(input.shape)
    keep = source.keep(shape, p, input.device).to(input.dtype)
    scale = 1 / math.sqrt((_ALPHA**2 * p + 1) * (1 - p))
    shift = (keep - 1) * (_ALPHA * scale) + _ALPHA * scale * p
    return _times(input, keep * scale, inplace).add_(shift) if inplace else input * (keep * scale) + shift


def _options(
    function: Callable[..., Tensor], training: bool | None = None, inplace: bool = False, train: bool | None = None
) -> tuple[bool, bool]:
    """Return whether a dropout is in training, and whether it writes into its input, from its further arguments."""
    by_default = function in (F.dropout, F.dropout1d, F.dropout2d, F.dropout3d)
    given = training if train is None else train
    return by_default if given is None else given, inplace or function.__name__.endswith("_")


def _attention(
    source: MaskSource,
    function: Callable[..., Tensor],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
    explicit: bool = False,
) -> Tensor:
    """Compute attention with weights in memory, and drop a share `dropout_p` of them."""
    if not (0 < dropout_p <= 1 or explicit):
        options = {"attn_mask": attn_mask, "dropout_p": dropout_p, "is_causal": is_causal, "scale": scale}
        return function(query, key, value, **options, **({"enable_gqa": True} if enable_gqa else {}))
    if enable_gqa:
        groups = query.shape[-3] // key.shape[-3]
        key, value = key.repeat_interleave(groups, -3), value.repeat_interleave(groups, -3)
    scores = query @ key.mT * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attn_mask, -math.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask
    nothing = scores.isneginf().all(-1, keepdim=True)  # A query without keys attends to nothing, without NaN.
    weights = scores.masked_fill(nothing, 0).softmax(-1).masked_fill(nothing, 0)
    return (weights * _scaled(source, weights, tuple(weights.shape), dropout_p) if dropout_p else weights) @ value


def _multi_head_attention(
    source: MaskSource, function: Callable[..., Any], *args: Any, explicit: bool = False, **kwargs: Any
) -> Any:
    """Compute `nn.MultiheadAttention` from torch's own weights, and drop a share of them.

    Torch applies its dropout within one function. So that function computes weights without dropout; only the product
    of weights and values, and the last linear layer, are computed here.
    """
    bound = _MULTI_HEAD.bind(*args, **kwargs)
    bound.apply_defaults()
    now = bound.arguments
    p, heads = now["dropout_p"], now["num_heads"]
    wants_weights, averages = now["need_weights"], now["average_attn_weights"]
    if not now["training"] or not 0 < p <= 1 or now["static_k"] is not None or now["static_v"] is not None:
        now["need_weights"] |= explicit
        out, weights = function(*bound.args, **bound.kwargs)
        return out, weights if wants_weights else None
    now |= {"dropout_p": 0.0, "need_weights": True, "average_attn_weights": False}
    out, weights = function(*bound.args, **bound.kwargs)
    value = now["value"] if now["value"].dim() == 3 else now["value"].unsqueeze(1)
    batch = value.shape[1]
    width, bias = now["embed_dim_to_check"], now["in_proj_bias"]
    matrix = now["v_proj_weight"] if now["use_separate_proj_weight"] else now["in_proj_weight"][2 * width :]
    values = F.linear(value, matrix, None if bias is None else bias[2 * width :])
    if now["bias_v"] is not None:
        values = torch.cat([values, now["bias_v"].expand(-1, batch, -1)])
    values = values.reshape(len(values), batch, heads, -1).permute(1, 2, 0, 3)  # [B, heads, S, width of a head]
    if now["add_zero_attn"]:
        values = torch.cat([values, values.new_zeros(*values.shape[:2], 1, values.shape[3])], 2)
    weights = weights * _scaled(source, weights, tuple(weights.shape), p)
    attended = (weights.reshape(batch, heads, -1, values.shape[2]) @ values).permute(2, 0, 1, 3).flatten(2)
    out = F.linear(attended, now["out_proj_weight"], now["out_proj_bias"]).reshape(out.shape)
    if not wants_weights:
        return out, None
    return out, weights.mean(-3) if averages else weights


def _bernoulli(
    source: MaskSource,
    function: Callable[..., Tensor],
    tensor: Tensor,
    p: float | Tensor = 0.5,
    *,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Fill a tensor with zeros and, with probability p, ones, as the paths that a network drops."""
    if generator is not None or isinstance(p, Tensor) or not 0 < p < 1:
        return function(tensor, p, generator=generator)
    drawn = source.keep(tuple(tensor.shape), 1 - p, tensor.device).to(tensor.dtype)
    batched = torch._C._functorch.is_batchedtensor
    if batched(drawn) and not batched(tensor):  # Torch cannot write clients' own numbers into a common tensor.
        return drawn
    return tensor.copy_(drawn)


OWN: dict[Callable[..., Any], Callable[..., Any]] = {
    **dict.fromkeys((F.dropout, torch.dropout, torch.dropout_), _dropout),
    **dict.fromkeys(
        (F.dropout1d, F.dropout2d, F.dropout3d, torch.feature_dropout, torch.feature_dropout_), _feature_dropout
    ),
    **dict.fromkeys((F.alpha_dropout, torch.alpha_dropout, torch.alpha_dropout_), _alpha_dropout),
    **dict.fromkeys(
        (F.feature_alpha_dropout, torch.feature_alpha_dropout, torch.feature_alpha_dropout_), _alpha_dropout
    ),
    F.scaled_dot_product_attention: _attention,
    F.multi_head_attention_forward: _multi_head_attention,
    Tensor.bernoulli_: _bernoulli,
}
"""Functions that draw from a source of masks in `OwnDraws`, each with its replacement: (source, function, *arguments).

Without a draw (in evaluation, or for a probability of 0) the replacement calls the function itself.
"""

_EXPLICIT: dict[Callable[..., Any], Callable[..., Any]] = {
    F.scaled_dot_product_attention: partial(_attention, explicit=True),
    F.multi_head_attention_forward: partial(_multi_head_attention, explicit=True),
}
