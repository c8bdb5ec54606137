"""Merged network: the plain network, called once with the samples of k clients, with layers of each client's own.

Networks whose forward pass cannot be traced, such as those of Hugging Face, are called as they are, with the k B
samples of all clients as one batch. Only layers that have parameters are computed by the rules of the stacked network:
a layer's input is viewed as [k, B, ...], and its output flattened again. A parameter that a container of layers uses
itself must have a first dimension of 1, such as a class token, and is repeated for each sample.

This is right as long as samples do not interact, and layers treat the first dimension as that of samples. The trial of
two clients against two plain networks finds out; later, each layer's inputs must be as they were in the trial.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from dfl_lightning.engines.calling.adapted import source_of
from dfl_lightning.engines.dropout_layers import mask_key
from dfl_lightning.engines.stacked.cannot_stack import CannotStack
from dfl_lightning.engines.stacked.layers.activation import Activation
from dfl_lightning.engines.stacked.layers.passes import Pass
from dfl_lightning.engines.stacked.layers.rules import MODULES
from dfl_lightning.engines.stacked.networks.traced import StackedNetwork, Tracer
from dfl_lightning.utils.code.frozen import stand_ins, tensors_of
from dfl_lightning.utils.code.module_copies import copy_of


@dataclass
class _Running:
    """Pass that a copy of the network is computing, for the layers of the copy.

    Attributes:
        now: the pass.
        clients: number of clients k.
        batch: number of samples of a client B.
    """

    now: Pass = field(default_factory=lambda: Pass({}, False))
    clients: int = 1
    batch: int = 1


class MergedNetwork(StackedNetwork):
    """Forward pass of k clients as one batch of the plain network; see `StackedNetwork` for arguments and attributes.

    Raises:
        CannotStack: a layer has no rule, and `torch.vmap` does not support it; or a container of layers has a parameter
            whose first dimension is not 1, or a buffer that each client has by itself.
    """

    def _build(self) -> None:
        """Choose the layers that are computed for each client, and the parameters that are repeated for each sample."""
        self._rules: dict[str, Callable[..., Any]] = {}
        self._repeated: dict[str, list[str]] = {}  # Container -> its own parameters that clients do not share.
        self._by_sample: dict[tuple[str, int], bool] = {}  # Argument of a layer -> whether it has one row a sample.
        self._copies, self._operations = threading.local(), 0
        for name, layer in self._layers.items():
            if not any(name.startswith(f"{outer}.") or not outer for outer in self._rules):
                self._choose(name, layer)
        for layer_name in self._wanted:
            if layer_name not in self._rules:
                raise CannotStack(f"the input of '{layer_name}' is needed, but it consists of several layers")

    def _choose(self, name: str, layer: nn.Module) -> None:
        own = [*layer.named_parameters(recurse=False), *layer.named_buffers(recurse=False)]
        full = {leaf: f"{name}.{leaf}".removeprefix(".") for leaf, _ in own}
        inner = any(next(child.parameters(), None) is not None for child in layer.children())
        called = type(layer).forward is not nn.Module.forward  # A list of layers is not.
        whole = not inner or (called and Tracer().is_leaf_module(layer, name))
        if not own and not (whole and next(layer.parameters(), None) is not None):
            return
        if whole and (type(layer) in MODULES or not self.common_names.issuperset(full.values()) or inner):
            self._rules[name] = self.rule_of_layer(name, layer)
            return
        for leaf, tensor in own:
            if full[leaf] in self.common_names:
                continue
            if not isinstance(tensor, nn.Parameter) or not tensor.dim() or len(tensor) != 1:
                raise CannotStack(f"'{full[leaf]}' is used by a module of several layers, and is not [1, ...]")
            self._repeated.setdefault(name, []).append(leaf)

    def __call__(self, now: Pass, inputs: Tensor) -> Tensor:
        """Compute scores [k, B, C] of k clients' inputs [k, B, ...], or of inputs that all share, [1, B, ...]."""
        clients = self._begin(now, inputs)
        if len(inputs) != clients:
            inputs = inputs.expand(clients, *inputs.shape[1:])
        network, running = self._copy(now)
        running.now, running.clients, running.batch = now, clients, inputs.shape[1]
        for name, leaves in self._repeated.items():
            module = network.get_submodule(name)
            for leaf in leaves:
                tensor = now.tensors[f"{name}.{leaf}".removeprefix(".")]
                repeated = tensor.expand(clients, running.batch, *tensor.shape[2:]).flatten(0, 1)
                object.__setattr__(module, leaf, repeated)
        if now.masks is not None:
            source_of(network).begin(now.masks, now.dropped)
        scores = network(inputs.flatten(0, 1))
        now.dropped = source_of(network).call
        return scores.unflatten(0, (clients, running.batch))

    def _copy(self, now: Pass) -> tuple[nn.Module, _Running]:
        """Return this thread's copy of the network in the pass's mode and type, and what its layers know of a pass."""
        wanted = next((t.dtype for t in now.tensors.values() if t.is_floating_point()), torch.float32)
        present = next((t.dtype for t in tensors_of(self.network).values() if t.is_floating_point()), wanted)
        if wanted != present:
            return self._make(now, wanted)  # Of the trial.
        if not hasattr(self._copies, "made"):
            self._copies.made = {}
        if now.training not in self._copies.made:
            self._copies.made[now.training] = self._make(now, wanted)
        made: tuple[nn.Module, _Running] = self._copies.made[now.training]
        return made

    def _make(self, now: Pass, dtype: torch.dtype) -> tuple[nn.Module, _Running]:
        common = {name: now.tensors[name][0] for name in self.common}  # Views of the one copy that there is.
        network = copy_of(self.network, stand_ins(self.network, common)).to(dtype).train(now.training)
        running = _Running()
        for name, rule in self._rules.items():
            object.__setattr__(network.get_submodule(name), "forward", self._forward(name, rule, network, running))
        for name, leaves in self._repeated.items():
            for leaf in leaves:
                del network.get_submodule(name)._parameters[leaf]
        return network, running

    def _forward(
        self, name: str, rule: Callable[..., Any], network: nn.Module, running: _Running
    ) -> Callable[..., Any]:
        """Return a layer's forward pass of the samples of all clients, [k B, ...]."""
        source = source_of(network)

        def viewed(position: int, value: Any) -> Any:
            if not isinstance(value, Tensor) or not value.dim():
                return value
            clients, batch = running.clients, running.batch
            by_sample = len(value) == clients * batch and self._by_sample.get((name, position), True)
            if self._by_sample.setdefault((name, position), by_sample) != by_sample or not (
                by_sample or position or len(value) == 1
            ):
                raise RuntimeError(
                    f"layer '{name}' has an input of shape {list(value.shape)}, where the first dimension is not that "
                    f"of the {clients * batch} samples of {clients} clients"
                )
            if by_sample:
                return Activation(value.unflatten(0, (clients, batch)), clients)
            # Clients share what has one row for all samples, such as the numbers of positions.
            return value if position else Activation(value.unsqueeze(0), 1).spread(clients)

        def flat(value: Any) -> Any:
            if not isinstance(value, Activation):
                return value
            numbers = value.leading()
            if numbers.shape[1] != running.batch:
                numbers = numbers.expand(-1, running.batch, *numbers.shape[2:])
            return numbers.flatten(0, 1)

        def forward(*args: Any, **kwargs: Any) -> Any:
            now = running.now
            values = [viewed(position, value) for position, value in enumerate(args)]
            more = {key: viewed(len(args) + at, value) for at, (key, value) in enumerate(sorted(kwargs.items()))}
            if (now.training or now.keeps_features) and name in self._wanted:
                for wanted in self._wanted[name]:
                    now.features[wanted] = values[0].leading()
            now.dropped = source.call
            try:
                result = rule(now, *values, **more)
            except Exception as error:
                error.add_note(f"in layer '{name}' ({type(self._layers[name]).__name__})")
                raise
            source.call = now.dropped
            return tree_map(flat, result, is_leaf=lambda value: isinstance(value, Activation))

        return forward

    # --- cost ---------------------------------------------------------------------------------------------------------
    def can_be_unfolded(self) -> list[str]:
        """Return no names: convolutions are computed as torch does."""
        return []

    @property
    def calls(self) -> int:
        """Number of operations of a training pass that write numbers; `activations` counts them."""
        return self._operations

    def activations(self, inputs: Tensor) -> int:
        """Count the numbers that a training pass of inputs [B, ...] writes, and those of the inputs."""
        network = copy_of(self.network, {id(t): t for t in tensors_of(self.network).values()}).train()
        source_of(network).begin(mask_key(0))
        with torch.no_grad(), _Writes() as writes:
            network(inputs)
        self._operations = writes.operations
        return writes.numbers + math.prod(inputs.shape)

    def patches(self, inputs: Tensor, batch: int) -> dict[str, int]:
        """Return no entries, as no convolution is unfolded."""
        return {}


class _Writes(TorchDispatchMode):
    """Context that counts the operations that write numbers, and the numbers; views write none."""

    def __init__(self) -> None:
        super().__init__()
        self.operations, self.numbers = 0, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        read = {leaf.data_ptr() for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
        fresh = [t for t in tree_leaves(result) if isinstance(t, Tensor) and t.data_ptr() not in read]
        self.operations += bool(fresh)
        self.numbers += sum(t.numel() for t in fresh)
        return result
