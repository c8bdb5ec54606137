"""Rules that compute each kind of layer for k clients at once.

To add a layer, write a rule and enter it in `MODULES` (or `FUNCTIONS`, `METHODS`). If you list it in
`tests/engines/stacked/test_layers.py`, it is compared there with k plain layers. Layers without a rule are computed by
`torch.vmap`, which is correct but slower; networks with layers that vmap does not support need the loop engine.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from dfl_lightning.data.parts import taken
from dfl_lightning.engines.calling.own_draws import OwnDraws
from dfl_lightning.engines.dropout_layers import MaskSource, StreamDropout, keep_mask
from dfl_lightning.engines.recurrent_layers import STREAMS
from dfl_lightning.engines.stacked.layers.activation import Activation, holds_activation, one_by_one
from dfl_lightning.engines.stacked.layers.convolution import batched_product, convolution, flat
from dfl_lightning.engines.stacked.layers.drawing import drawn_one_by_one
from dfl_lightning.engines.stacked.layers.group_norm import group_norm_in_layout, keeps_layout
from dfl_lightning.engines.stacked.layers.masked_norm import masked_batch_norm
from dfl_lightning.engines.stacked.layers.passes import Pass, Rule
from dfl_lightning.engines.stacked.layers.recurrent import recurrent
from dfl_lightning.engines.trials import norm_strides

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


# --- layers with parameters -------------------------------------------------------------------------------------------
def linear(layer: nn.Linear, name: str, now: Pass, x: Activation) -> Activation:
    """Compute a linear layer by a batched matrix product."""
    weight = now.weight(name)
    inputs, bias = x.leading(), now.of(name, "bias")
    if inputs.dim() == 3:  # This is the usual case.
        return Activation(batched_product(inputs, weight, bias), x.clients)
    outputs = batched_product(inputs.reshape(x.clients, -1, inputs.shape[-1]), weight, bias)
    return Activation(outputs.view(*inputs.shape[:-1], -1), x.clients)


def adapted(layer: Any, name: str, now: Pass, x: Activation) -> Activation:
    """Compute a linear layer, and add the output of each client's adapter."""
    plain = linear(layer, name, now, x)
    inputs = x.leading()
    rows = inputs.reshape(x.clients, -1, inputs.shape[-1])
    inner = batched_product(rows, now.tensors[f"{name}.lora_A".removeprefix(".")], None)
    outer = batched_product(layer.scaling * inner, now.tensors[f"{name}.lora_B".removeprefix(".")], None)
    return plain.like(plain.tensor + outer.view_as(plain.tensor))


def _transposed(function: Callable[..., Tensor]) -> Rule:
    def rule(layer: nn.ConvTranspose2d, name: str, now: Pass, x: Activation) -> Activation:
        """Compute a transposed convolution with k times the groups."""
        weight, bias = flat(now.of(name, "weight")), flat(now.of(name, "bias"))
        groups = x.clients * layer.groups
        padding = (layer.stride, layer.padding, layer.output_padding)
        return Activation(function(x.side_by_side(), weight, bias, *padding, groups, layer.dilation), x.clients, True)

    return rule


def group_norm(layer: nn.GroupNorm, name: str, now: Pass, x: Activation) -> Activation:
    """Compute a group norm with k times the groups."""
    inputs, groups = x.side_by_side(), x.clients * layer.num_groups
    weight, bias = flat(now.of(name, "weight")), flat(now.of(name, "bias"))
    if not keeps_layout(inputs):
        return Activation(F.group_norm(inputs, groups, weight, bias, layer.eps), x.clients, True)
    if inputs.numel() == groups:  # Torch raises the same error.
        raise ValueError(f"Expected more than 1 value per channel when training, got input size {x.shape}")
    out = group_norm_in_layout(inputs, groups, weight, bias, layer.eps, _as_group_norm(inputs))
    return Activation(out, x.clients, True)


def _as_group_norm(inputs: Tensor) -> torch.dtype:
    """Return the type that torch's group norm returns; autocast never reduces it on GPUs."""
    reduced = torch.is_autocast_enabled(inputs.device.type)
    return torch.promote_types(inputs.dtype, torch.float32) if reduced else inputs.dtype


def layer_norm(layer: nn.LayerNorm, name: str, now: Pass, x: Activation) -> Activation:
    """Normalise the last dimensions, then scale by each client's own weights."""
    tensor = x.leading()
    out = F.layer_norm(tensor, layer.normalized_shape, eps=layer.eps)
    broadcast = (x.clients, *[1] * (tensor.dim() - 1 - len(layer.normalized_shape)), *layer.normalized_shape)
    weight, bias = now.of(name, "weight"), now.of(name, "bias")
    if weight is not None:
        out = (out * weight.view(broadcast)).to(out.dtype)  # In autocast, weights may have a larger type than outputs.
    if bias is not None:
        out = (out + bias.view(broadcast)).to(out.dtype)
    return Activation(out, x.clients)


def batch_norm(layer: nn.BatchNorm2d, name: str, now: Pass, x: Activation) -> Activation:
    """Compute a batch norm of k * C channels, so that each client has its own statistics."""
    mean, var, count = (now.of(name, buffer) for buffer in ("running_mean", "running_var", "num_batches_tracked"))
    use_batch = now.training or mean is None
    if now.training and count is not None:
        count.add_(1)
    if use_batch and (now.shares is not None or _averages_all(layer)):
        return _masked(layer, name, now, x)
    out = norm_strides.batch_norm(
        x.side_by_side(),
        flat(mean),
        flat(var),
        flat(now.of(name, "weight")),
        flat(now.of(name, "bias")),
        use_batch,
        layer.momentum or 0.0,
        layer.eps,
    )
    return Activation(out, x.clients, channels=True)


def _masked(layer: nn.BatchNorm2d, name: str, now: Pass, x: Activation) -> Activation:
    """Compute a batch norm of clients with different numbers of samples, or different momenta."""
    inputs = x.side_by_side()
    fewest = len(inputs) if now.sizes is None else min(now.sizes)
    if fewest * inputs[0, 0].numel() == 1:  # Torch raises the same error.
        raise ValueError(f"Expected more than 1 value per channel when training, got input size {x.shape}")
    shares = now.shares
    if shares is None:
        kind = torch.promote_types(inputs.dtype, torch.float32)
        shares = torch.full((x.clients, len(inputs)), 1 / len(inputs), dtype=kind, device=inputs.device)
    mean, var, count = (now.of(name, buffer) for buffer in ("running_mean", "running_var", "num_batches_tracked"))
    running = None if mean is None or var is None else (mean, var)
    rate: float | Tensor = layer.momentum or 0.0
    if _averages_all(layer) and count is not None:
        rate = (1 / count.to(shares.dtype)).unsqueeze(1)
    weight, bias = now.of(name, "weight"), now.of(name, "bias")
    out = masked_batch_norm(inputs.unflatten(1, (x.clients, -1)), running, weight, bias, shares, rate, layer.eps)
    return Activation(out.flatten(1, 2), x.clients, channels=True)


def _averages_all(layer: nn.Module) -> bool:
    """Return True if a layer is a batch norm whose running statistics are averages over all batches so far."""
    return isinstance(layer, BATCH_NORMS) and layer.momentum is None and layer.track_running_stats


def instance_norm(layer: nn.InstanceNorm2d, name: str, now: Pass, x: Activation) -> Activation:
    """Compute an instance norm of k * C channels, each of them a group."""
    inputs = x.side_by_side()
    weight, bias = flat(now.of(name, "weight")), flat(now.of(name, "bias"))
    if not keeps_layout(inputs):
        out = norm_strides.instance_norm(inputs, weight=weight, bias=bias, eps=layer.eps)
    elif inputs[0, 0].numel() == 1:  # Torch raises the same error.
        raise ValueError(f"Expected more than 1 spatial element when training, got input size {x.shape}")
    else:
        out = group_norm_in_layout(inputs, inputs.shape[1], weight, bias, layer.eps, inputs.dtype)
    return Activation(out, x.clients, channels=True)


def _batch_norm(function: Callable[..., Tensor]) -> Callable[..., Activation]:
    def rule(x: Activation, *args: Any, **kwargs: Any) -> Activation:
        """Compute a batch norm that is called as a function, by vmap, on strides that are safe; see `norm_strides`."""
        if 1 in x.shape:
            x = Activation(x.leading().contiguous(), x.clients)
        out: Activation = one_by_one(function, x, *args, **kwargs)
        return out

    return rule


def embedding(layer: nn.Embedding, name: str, now: Pass, x: Activation) -> Activation:
    """Look up indices in one table with k times the rows."""
    weight = now.weight(name)
    index = x.leading()
    # An index out of range would read another client's row. On a GPU the check must not make the host wait.
    if index.is_cuda:
        torch._assert_async(((index >= 0) & (index < layer.num_embeddings)).all(), "index out of range in self")
    elif index.numel() and not 0 <= int(index.min()) <= int(index.max()) < layer.num_embeddings:
        raise IndexError("index out of range in self")  # Torch raises the same error.
    first = torch.arange(x.clients, device=index.device) * layer.num_embeddings
    vectors = F.embedding(index + first.view(-1, *[1] * (index.dim() - 1)), weight.flatten(0, 1))
    if layer.padding_idx is not None:  # The row of this index gets no gradient.
        vectors = torch.where((index == layer.padding_idx).unsqueeze(-1), vectors.detach(), vectors)
    return Activation(vectors, x.clients)


def attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **options: Any,
) -> Activation:
    """Compute attention of k * B samples in one call of torch's kernels; use vmap if clients have their own masks.

    Args:
        query: [B, heads, T, d] of each client, or [B, T, d].
        key: [B, heads, S, d] of each client, or [B, S, d].
        value: [B, heads, S, e] of each client, or [B, S, e].
        attn_mask: one mask for all samples, [T, S], or None.
        dropout_p: share of the weights that are dropped.
        is_causal: see `torch.nn.functional.scaled_dot_product_attention`.
        options: further options of `torch.nn.functional.scaled_dot_product_attention`.
    """
    options |= {"attn_mask": attn_mask, "dropout_p": dropout_p, "is_causal": is_causal}
    parts, function = (query, key, value), F.scaled_dot_product_attention
    plain = all(isinstance(x, Activation) and len(x.shape) in (3, 4) for x in parts)
    if not plain or (attn_mask is not None and (isinstance(attn_mask, Activation) or attn_mask.dim() != 2)):
        with OwnDraws(MaskSource(), explicit=True):
            separate: Activation = one_by_one(function, *parts, **options)
        return separate
    out = function(*(x.leading().flatten(0, 1) for x in parts), **options)
    return Activation(out.unflatten(0, (query.clients, -1)), query.clients)


def transpose(x: Activation, first: int, second: int) -> Activation:
    """Transpose two dimensions of each client's tensor, counted without the dimension of clients."""
    return Activation(x.leading().transpose(*(dim + 1 if dim >= 0 else dim for dim in (first, second))), x.clients)


def unflatten(x: Activation, dim: int, sizes: Sequence[int]) -> Activation:
    """Unflatten a dimension of each client's tensor.

    Args:
        x: activations.
        dim: the dimension, counted without that of clients.
        sizes: the sizes that replace it.
    """
    return Activation(x.leading().unflatten(dim + 1 if dim >= 0 else dim, tuple(sizes)), x.clients)


def pad(x: Any, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Activation:
    """Pad the last dimension of each client's tensor; use vmap for other dimensions and modes.

    Args:
        x: activations.
        pad: numbers of entries before and behind each dimension, the last dimension first; see `F.pad`.
        mode: see `F.pad`.
        value: value of the padding.
    """
    if len(pad) == 2 and mode == "constant" and len(x.shape) > 2:
        return x.like(F.pad(x.tensor, tuple(pad), mode, value))
    padded: Activation = one_by_one(F.pad, x, pad, mode, value)
    return padded


def with_vmap(
    layer: nn.Module,
    name: str,
    now: Pass,
    *args: Any,
    common: frozenset[str] = frozenset(),
    draws: bool = False,
    **kwargs: Any,
) -> Any:
    """Compute a layer without buffers by `torch.vmap`.

    Args:
        layer: a copy of the layer that no other thread uses.
        name: name of the layer in the network.
        now: the pass.
        args: the layer's inputs.
        common: names of the tensors that all clients share; the layer gets them once.
        draws: True if the layer may draw masks in training.
        kwargs: further inputs by name.
    """
    clients = _clients(args)
    stacked = {leaf: now.tensors[f"{name}.{leaf}"] for leaf, _ in layer.named_parameters()}
    mine = {
        leaf: tensor[0] if f"{name}.{leaf}" in common else Activation(tensor, clients)
        for leaf, tensor in stacked.items()
    }

    def call(state: Any, *inner: Any, **more: Any) -> Any:
        return functional_call(layer, state, inner, more)

    if not draws or not now.training:
        attends = any(isinstance(inner, nn.MultiheadAttention) for inner in layer.modules())
        with OwnDraws(MaskSource(), explicit=True) if attends else nullcontext():
            return one_by_one(call, mine, *args, **kwargs)
    sources = (inner.source for inner in layer.modules() if isinstance(inner, StreamDropout))
    return drawn_one_by_one(call, now, next(sources, MaskSource()), mine, *args, **kwargs)


def _clients(args: Sequence[Any]) -> int:
    return next(arg.clients for arg in args if isinstance(arg, Activation))


# --- layers without parameters ----------------------------------------------------------------------------------------
def dropout(layer: StreamDropout, name: str, now: Pass, x: Activation) -> Activation:
    """Apply dropout with masks from each client's own key, so that they do not depend on other clients."""
    if not now.training or layer.p == 0:
        return x
    assert now.masks is not None
    clients = x.clients
    now.dropped += 1
    if layer.p == 1:
        return x.like(x.tensor * torch.zeros_like(x.tensor))
    keep = keep_mask(now.masks, now.dropped - 1, layer.shape_of_mask(x.shape), layer.p)
    scaled = keep.to(x.tensor.dtype) / (1 - layer.p)
    return x.like(x.tensor * (Activation(scaled, clients).side_by_side() if x.channels else scaled))


def _drop(now: Pass, layer: nn.Module, numbers: Tensor) -> Tensor:
    """Apply a dropout layer to numbers of all clients, [k, B, ...]."""
    dropped = dropout(layer, "", now, Activation(numbers, len(numbers)))  # type: ignore[arg-type]
    return dropped.tensor


def index(x: Any, key: Any) -> Any:
    """Index each client's tensor, or a tuple of activations; use vmap for keys other than numbers and slices.

    Args:
        x: an activation, or a tuple of them.
        key: what stands in the brackets.
    """
    if not isinstance(x, Activation):
        return x[key]
    parts = key if isinstance(key, tuple) else (key,)
    if all(part is None or part is Ellipsis or type(part) in (int, slice) for part in parts):
        return Activation(x.leading()[(slice(None), *parts)], x.clients)
    return one_by_one(operator.getitem, x, key)


def flatten(x: Activation, start_dim: int = 0, end_dim: int = -1) -> Activation:
    """Flatten dimensions of each client's tensor.

    Args:
        x: activations.
        start_dim: first dimension, counted without that of clients.
        end_dim: last dimension, counted without that of clients.
    """
    tensor = x.leading()
    return Activation(tensor.flatten(*(dim + 1 if dim >= 0 else dim for dim in (start_dim, end_dim))), x.clients)


def reshape(x: Activation, *shape: Any) -> Activation:
    """Reshape each client's tensor; the rule of `view` and `reshape`.

    Args:
        x: activations.
        shape: new shape of one client's tensor: numbers, or one sequence of them.
    """
    sizes = shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
    return Activation(x.leading().reshape(x.clients, *sizes), x.clients)


def attribute(x: Activation, name: str) -> Any:
    """Get an attribute of each client's tensor: a common value (`x.shape`, `x.device`), or an activation (`x.mT`)."""
    if name in ("shape", "ndim"):
        return x.shape if name == "shape" else len(x.shape)
    value = getattr(x.tensor, name)
    return one_by_one(getattr, x, name) if isinstance(value, Tensor) else value


def relu_in_place(x: Activation) -> Activation:
    """Compute relu in place, for an input that no other node reads; the network's plan uses it."""
    return x.like(torch.relu_(x.tensor))


def _entrywise(function: Callable[..., Tensor]) -> Callable[..., Activation]:
    def rule(x: Activation, *args: Any, inplace: bool = False, **kwargs: Any) -> Activation:
        """Apply an entrywise function in any layout; `inplace` also changes the input for other nodes."""
        if any(map(holds_activation, args)):  # For example a parameter of PReLU.
            return one_by_one(function, x, *args, **kwargs)
        out = function(x.tensor, *args, **kwargs)
        if inplace:
            x.tensor = out
            return x
        return x.like(out)

    return rule


def _channelwise(function: Callable[..., Tensor]) -> Callable[..., Activation]:
    def rule(x: Activation, *args: Any, **kwargs: Any) -> Activation:
        """Apply a function that treats channels separately to the clients' channels side by side."""
        return Activation(function(x.side_by_side(), *args, **kwargs), x.clients, channels=True)

    return rule


def _arithmetic(function: Callable[..., Tensor], in_place: bool = False) -> Callable[..., Activation]:
    def rule(a: Any, b: Any) -> Activation:
        """Combine two activations of one shape, or an activation and a number; use vmap for other operands."""
        if isinstance(a, Activation) and isinstance(b, Activation):
            if a.shape == b.shape:
                right = b.tensor if a.channels == b.channels else b.side_by_side() if a.channels else b.leading()
                out = a.like(function(a.tensor, right))
            else:
                out = one_by_one(function, a, b)
        elif isinstance(a, Activation) and isinstance(b, int | float):
            out = a.like(function(a.tensor, b))
        elif isinstance(b, Activation) and isinstance(a, int | float):
            out = b.like(function(a, b.tensor))
        else:
            out = one_by_one(function, a, b)
        if in_place:
            a.tensor, a.channels = out.tensor, out.channels
            return a
        return out

    return rule


def _module(rule: Callable[..., Activation], *options: str) -> Rule:
    """Return the rule of a layer without parameters: its function, with the layer's `options` as keywords."""
    return lambda layer, name, now, x: rule(x, **{option: getattr(layer, option) for option in options})


_ENTRYWISE_FUNCTIONS: dict[Callable[..., Tensor], tuple[type[nn.Module] | None, tuple[str, ...]]] = {
    F.relu: (nn.ReLU, ("inplace",)),
    F.relu6: (nn.ReLU6, ()),
    F.leaky_relu: (nn.LeakyReLU, ("negative_slope", "inplace")),
    F.elu: (nn.ELU, ("alpha", "inplace")),
    F.selu: (nn.SELU, ("inplace",)),
    F.celu: (nn.CELU, ("alpha", "inplace")),
    F.gelu: (nn.GELU, ("approximate",)),
    F.silu: (nn.SiLU, ("inplace",)),
    F.mish: (nn.Mish, ("inplace",)),
    F.softplus: (nn.Softplus, ("beta", "threshold")),
    F.softsign: (nn.Softsign, ()),
    F.hardtanh: (nn.Hardtanh, ("min_val", "max_val", "inplace")),
    F.hardswish: (nn.Hardswish, ("inplace",)),
    F.hardsigmoid: (nn.Hardsigmoid, ("inplace",)),
    F.logsigmoid: (nn.LogSigmoid, ()),
    torch.relu: (None, ()),
    torch.tanh: (nn.Tanh, ()),
    torch.sigmoid: (nn.Sigmoid, ()),
    F.tanh: (None, ()),
    F.sigmoid: (None, ()),
    torch.exp: (None, ()),
    torch.sqrt: (None, ()),
    torch.square: (None, ()),
    torch.abs: (None, ()),
    operator.neg: (None, ()),
}

_POOL = ("kernel_size", "stride", "padding", "dilation", "ceil_mode")
_AVG = ("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad")
_CHANNELWISE_FUNCTIONS: dict[Callable[..., Tensor], tuple[type[nn.Module], tuple[str, ...]]] = {
    F.max_pool1d: (nn.MaxPool1d, _POOL),
    F.max_pool2d: (nn.MaxPool2d, _POOL),
    F.max_pool3d: (nn.MaxPool3d, _POOL),
    F.avg_pool1d: (nn.AvgPool1d, _AVG),
    F.avg_pool2d: (nn.AvgPool2d, (*_AVG, "divisor_override")),
    F.avg_pool3d: (nn.AvgPool3d, (*_AVG, "divisor_override")),
    F.adaptive_avg_pool1d: (nn.AdaptiveAvgPool1d, ("output_size",)),
    F.adaptive_avg_pool2d: (nn.AdaptiveAvgPool2d, ("output_size",)),
    F.adaptive_avg_pool3d: (nn.AdaptiveAvgPool3d, ("output_size",)),
    F.adaptive_max_pool1d: (nn.AdaptiveMaxPool1d, ("output_size",)),
    F.adaptive_max_pool2d: (nn.AdaptiveMaxPool2d, ("output_size",)),
    F.adaptive_max_pool3d: (nn.AdaptiveMaxPool3d, ("output_size",)),
}

MODULES: dict[type[nn.Module], Rule] = {
    nn.Linear: linear,
    nn.Conv1d: convolution(F.conv1d),
    nn.Conv2d: convolution(F.conv2d),
    nn.Conv3d: convolution(F.conv3d),
    nn.ConvTranspose1d: _transposed(F.conv_transpose1d),
    nn.ConvTranspose2d: _transposed(F.conv_transpose2d),
    nn.ConvTranspose3d: _transposed(F.conv_transpose3d),
    nn.GroupNorm: group_norm,
    nn.LayerNorm: layer_norm,
    **dict.fromkeys(BATCH_NORMS, batch_norm),
    nn.InstanceNorm1d: instance_norm,
    nn.InstanceNorm2d: instance_norm,
    nn.InstanceNorm3d: instance_norm,
    nn.Embedding: embedding,
    StreamDropout: dropout,
    **dict.fromkeys((*STREAMS, *STREAMS.values()), recurrent(_drop)),
    nn.Flatten: _module(flatten, "start_dim", "end_dim"),
    nn.Identity: lambda layer, name, now, x: x,
    nn.Sequential: lambda layer, name, now, x: x,  # An empty one; the tracer enters others.
}
"""Rules for layers, by their exact type."""

FUNCTIONS: dict[Callable[..., Any], Callable[..., Any]] = {
    taken: lambda x, *part: Activation(taken(x.leading(), *part), x.clients),
    torch.flatten: flatten,
    F.scaled_dot_product_attention: attention,
    F.pad: pad,
    operator.add: _arithmetic(operator.add),
    operator.sub: _arithmetic(operator.sub),
    operator.mul: _arithmetic(operator.mul),
    operator.truediv: _arithmetic(operator.truediv),
    operator.iadd: _arithmetic(operator.add, in_place=True),
    operator.imul: _arithmetic(operator.mul, in_place=True),
    torch.add: _arithmetic(torch.add),
    torch.mul: _arithmetic(torch.mul),
    getattr: attribute,
    operator.getitem: index,
    F.batch_norm: _batch_norm(F.batch_norm),
    torch.batch_norm: _batch_norm(torch.batch_norm),
}
"""Rules for functions that the network calls."""

METHODS: dict[str, Callable[..., Any]] = {
    "flatten": flatten,
    "view": reshape,
    "reshape": reshape,
    "transpose": transpose,
    "unflatten": unflatten,
    "size": lambda x, dim=None: x.shape if dim is None else x.shape[dim],
    "dim": lambda x: len(x.shape),
    "contiguous": lambda x: x,
    "relu": _entrywise(torch.relu),
    "tanh": _entrywise(torch.tanh),
    "sigmoid": _entrywise(torch.sigmoid),
}
"""Rules for methods of tensors."""

for _function, (_type, _options) in _ENTRYWISE_FUNCTIONS.items():
    FUNCTIONS[_function] = _entrywise(_function)
    if _type is not None:
        MODULES[_type] = _module(FUNCTIONS[_function], *_options)
for _function, (_type, _options) in _CHANNELWISE_FUNCTIONS.items():
    FUNCTIONS[_function] = _channelwise(_function)
    MODULES[_type] = _module(FUNCTIONS[_function], *_options)


def obstacle(layer: nn.Module) -> str | None:
    """Say in a few words why a layer cannot be stacked; return None if it can."""
    if _averages_all(layer) and next(layer.buffers()).device.type == "cpu":
        return "averages its statistics over all batches (momentum: null)"
    if isinstance(layer, nn.InstanceNorm1d | nn.InstanceNorm2d | nn.InstanceNorm3d) and layer.track_running_stats:
        return "tracks running statistics"
    if isinstance(layer, nn.Embedding) and layer.max_norm is not None:
        return "renormalises its rows"
    if isinstance(layer, nn.Embedding) and layer.scale_grad_by_freq:
        return "scales its gradients by how often a word occurs"
    if getattr(layer, "return_indices", False):
        return "returns indices"
    if type(layer) not in MODULES and next(layer.buffers(), None) is not None:
        return "has buffers and no rule"
    return None
