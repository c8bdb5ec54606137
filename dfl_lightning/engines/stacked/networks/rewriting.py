"""Rewrites of a traced network that keep values and gradients bit for bit, and save work."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn


def pool_before_relu(graph: fx.Graph, layers: Mapping[str, nn.Module]) -> None:
    """Swap relu and a following max pool: same numbers and gradients, with a quarter of the relu's work.

    Args:
        graph: graph of the network, changed in place.
        layers: layers of the network, by name.
    """
    for pool in list(graph.nodes):
        if not _is(pool, layers, nn.MaxPool2d, F.max_pool2d):
            continue
        relu = pool.args[0]
        if not (isinstance(relu, fx.Node) and _is(relu, layers, nn.ReLU, F.relu, torch.relu) and len(relu.users) == 1):
            continue
        source = relu.args[0]
        assert isinstance(source, fx.Node)
        pool.replace_input_with(relu, source)
        pool.replace_all_uses_with(relu, delete_user_cb=lambda user, relu=relu: user is not relu)
        relu.replace_input_with(source, pool)
        pool.append(relu)


_KEEPS_ITS_INPUT = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.BatchNorm1d, nn.BatchNorm2d, nn.GroupNorm)


def may_overwrite(relu: fx.Node, layers: Mapping[str, nn.Module]) -> bool:
    """Return True if a relu may overwrite its input.

    It may if no other node reads the input, and the backward pass of the layer that produced it does not, either.

    Args:
        relu: node of the relu.
        layers: layers of the network, by name.
    """
    source = relu.args[0]
    if not isinstance(source, fx.Node) or len(source.users) > 1:
        return False
    kept = (*_KEEPS_ITS_INPUT, nn.MaxPool2d, nn.AvgPool2d)
    return _is(source, layers, kept, operator.add, F.max_pool2d)


def _is(node: fx.Node, layers: Mapping[str, nn.Module], kind: Any, *functions: Any) -> bool:
    if node.op == "call_module":
        kinds = kind if isinstance(kind, tuple) else (kind,)
        return type(layers[str(node.target)]) in kinds
    return node.op == "call_function" and node.target in functions
