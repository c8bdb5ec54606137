"""Stacked network: a network for one client, traced and executed for k clients at once."""

from __future__ import annotations

import copy
import math
import operator
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from dfl_lightning.engines.calling.adapted import calling_of
from dfl_lightning.engines.calling.own_draws import OWN
from dfl_lightning.engines.dropout_layers import MaskSource, StreamDropout
from dfl_lightning.engines.recurrent_layers import STREAMS
from dfl_lightning.engines.stacked.cannot_stack import CannotStack
from dfl_lightning.engines.stacked.layers.activation import Activation, holds_activation, one_by_one
from dfl_lightning.engines.stacked.layers.common import is_common, rule_of
from dfl_lightning.engines.stacked.layers.convolution import can_unfold, numbers_of_patches
from dfl_lightning.engines.stacked.layers.drawing import drawn, drawn_one_by_one
from dfl_lightning.engines.stacked.layers.passes import Pass
from dfl_lightning.engines.stacked.layers.recurrent import kept_numbers
from dfl_lightning.engines.stacked.layers.rules import (
    FUNCTIONS,
    METHODS,
    MODULES,
    adapted,
    obstacle,
    relu_in_place,
    with_vmap,
)
from dfl_lightning.engines.stacked.networks.rewriting import may_overwrite, pool_before_relu
from dfl_lightning.engines.trials.norm_strides import NormRisk
from dfl_lightning.utils.code.adapters import Adapter
from dfl_lightning.utils.code.frozen import keep_frozen_norms, tensors_of
from dfl_lightning.utils.code.module_copies import copy_of
from dfl_lightning.utils.errors import reason, reported_as

PACKING = (nn.utils.rnn.pack_padded_sequence, nn.utils.rnn.pack_sequence, nn.utils.rnn.pad_packed_sequence)
"""Functions that pack sequences of different lengths into one, which no rule knows."""

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


@dataclass(frozen=True)
class _Step:
    """One node of the traced network, with the rule that computes it for k clients.

    Args:
        node: the node.
        run: (pass, *arguments) -> value.
        plain: True if other nodes' values are arguments themselves, and not inside of tuples or dicts.
        keeps_common: True if the rule accepts a value that all clients share, as [1, ...].
        dead: nodes whose values are not needed after this step.
    """

    node: fx.Node
    run: Callable[..., Any]
    plain: bool
    keeps_common: bool
    dead: tuple[fx.Node, ...]


class StackedNetwork:
    """Forward pass of k clients with a tensor [k, *shape] for each parameter of the network for one client.

    Args:
        network: the network for one client, after `prepare`; it is kept, and never written to.
        features: layers whose inputs a pass keeps (see `Pass.keeps_features`): names that the objective or the
            prediction uses -> names of layers.
        norms: training batches of `network` for which the gradients of torch's norms need a correction; the trial
            compares with this network.
        common: names of the parameters and buffers that are the same for all clients; a pass takes them from
            `network`, unless it has its own.

    Attributes:
        has_dropout: True if a training pass draws dropout masks.
        couples_samples: True if samples of a training batch interact (as in batch norms), so that padding would change
            results; `network_trial.try_out` determines it.
        masks_padding: True if samples interact in batch norms only, and these ignore padding; see
            `network_trial.try_masks`.
        unfolded: names of the convolutions that are computed by patches and a product; see
            `autotune.choose_unfolded`.

    Raises:
        CannotStack: a layer has no rule, and `torch.vmap` does not support it.
    """

    def __init__(
        self,
        network: nn.Module,
        features: Mapping[str, str] | None = None,
        norms: NormRisk = NormRisk.ALL,
        common: Iterable[str] = (),
    ) -> None:
        keep_frozen_norms(network)
        self.network, self.norms, self.common = network, norms, frozenset(common)
        self._wanted: dict[str, list[str]] = {}  # Layer -> the names under which its input is kept.
        for name, layer in (features or {}).items():
            self._wanted.setdefault(layer, []).append(name)
        calling = calling_of(network)
        if calling.foreign:
            raise CannotStack(f"it draws by {calling.foreign} from torch's global generator")
        self._draws = calling.draws
        self.has_dropout = calling.draws or any(isinstance(module, StreamDropout) for module in network.modules())
        self.unfolded: frozenset[str] = frozenset()
        self.couples_samples = True  # The safe value until `network_trial.try_out` determines it.
        self.masks_padding = False
        self.vectorised = False  # True if torch.vmap computes layers with parameters.
        self._steps: dict[str, int] = {}  # Steps of recurrent layers, by name; `activations` counts them.
        self._aliases = _aliases(network)
        self._views: dict[int, dict[str, Tensor]] = {}  # The common tensors for a number of clients.
        self._layers = dict(network.named_modules())
        for name, layer in self._layers.items():  # Containers, too: a traced network would ignore their hooks.
            if isinstance(layer, torch.jit.ScriptModule):
                raise CannotStack(f"layer '{name}' is scripted" if name else "it is scripted")
            if any(getattr(layer, hooks) for hooks in _HOOKS):
                raise CannotStack(f"layer '{name}' ({type(layer).__name__}) has hooks" if name else "it has hooks")
        self._build()

    def _build(self) -> None:
        """Trace the network, and plan the steps of a pass."""
        self._graphs = {mode: self._trace(mode) for mode in (True, False)}
        self._plans = {mode: self._plan(graph) for mode, graph in self._graphs.items()}
        called = {str(node.target) for node in self._graphs[True].nodes if node.op == "call_module"}
        for layer in self._wanted.keys() - called:
            raise CannotStack(f"the input of '{layer}' is needed, but it consists of several layers")

    def __call__(self, now: Pass, inputs: Tensor) -> Tensor:
        """Compute scores [k, B, C] of k clients' inputs [k, B, ...], or of inputs that all share, [1, B, ...]."""
        clients = self._begin(now, inputs)
        values: dict[fx.Node, Any] = {}
        some_common = len(inputs) != clients
        for step in self._plans[now.training]:
            node = step.node
            if node.op == "placeholder":
                values[node] = Activation(inputs, len(inputs))
            elif node.op == "output":
                result = values[node.args[0]]  # type: ignore[index]
                return result.spread(clients).leading()
            else:
                if some_common:
                    args, kwargs = _spread(step, values, clients)
                elif step.plain:  # This is the usual case, and faster.
                    args, kwargs = [values[a] if isinstance(a, fx.Node) else a for a in node.args], node.kwargs
                else:
                    args, kwargs = fx.map_arg((node.args, node.kwargs), values.__getitem__)
                if (now.training or now.keeps_features) and node.op == "call_module" and node.target in self._wanted:
                    for name in self._wanted[str(node.target)]:
                        now.features[name] = args[0].spread(clients).leading()
                try:
                    values[node] = step.run(now, *args, **kwargs)
                except Exception as error:
                    error.add_note(f"in {_describe(node, self._layers)}")
                    raise
            for dead in step.dead:
                values.pop(dead, None)
        raise AssertionError("a traced network has an output")

    def _begin(self, now: Pass, inputs: Tensor) -> int:
        """Give the pass the tensors that clients share, and further names of tied ones; return the clients."""
        now.unfolded = self.unfolded if now.unfolded is None else now.unfolded
        clients = len(next(iter(now.tensors.values()), inputs))
        if self.common:
            now.tensors = {**self._expanded(clients), **now.tensors}
        if self._aliases:
            now.tensors = {**now.tensors, **{name: now.tensors[own] for name, own in self._aliases.items()}}
        return clients

    @property
    def common_names(self) -> frozenset[str]:
        """Names of the common tensors, with those of tied ones."""
        return self.common | {name for name, own in self._aliases.items() if own in self.common}

    def can_be_unfolded(self) -> list[str]:
        """List the convolutions that `unfolded` may contain, by name, in the network's order."""
        nodes = (node for node in self._graphs[True].nodes if node.op == "call_module")
        names = dict.fromkeys(str(node.target) for node in nodes)  # A layer that is called twice counts once.
        same = self.common_names
        return [
            name for name in names if can_unfold(self._layers[name]) and not is_common(self._layers[name], name, same)
        ]

    @property
    def calls(self) -> int:
        """Number of layers and functions that a training pass calls; each step of a recurrent layer counts as one."""
        nodes = [node for node in self._graphs[True].nodes if node.op not in ("placeholder", "output", "get_attr")]
        return len(nodes) + sum(self._steps.values())

    def activations(self, inputs: Tensor) -> int:
        """Count the numbers that a pass of inputs [B, ...] writes, and those of the inputs."""
        counter = _Counter(fx.GraphModule(self.network, self._graphs[False]))
        with torch.no_grad():
            counter.run(inputs)
        self._steps = counter.steps
        return counter.count

    def patches(self, inputs: Tensor, batch: int) -> dict[str, int]:
        """Count the entries in the patches of a batch, for each convolution that can be computed by patches.

        Args:
            inputs: examples, [b, ...].
            batch: number of samples of the batch.
        """
        counter = _Patches(fx.GraphModule(self.network, self._graphs[False]), self.can_be_unfolded(), batch)
        with torch.no_grad():
            counter.run(inputs)
        return counter.counts

    def _expanded(self, clients: int) -> dict[str, Tensor]:
        """Return the common tensors as [clients, *shape], without copies."""
        if clients not in self._views:
            own = tensors_of(self.network)
            self._views[clients] = {
                name: own[name].detach().expand(clients, *own[name].shape) for name in own if name in self.common
            }
        return self._views[clients]

    # --- planning -----------------------------------------------------------------------------------------------------
    def _trace(self, training: bool) -> fx.Graph:
        # Tracing may assign a proxy to a layer's attribute instead of a tensor, so it works on a copy.
        traced = copy_of(self.network).train(training)
        with reported_as(lambda error: CannotStack(f"its forward pass cannot be traced ({reason(error)})")):
            graph = Tracer().trace(traced)
        for name, layer in traced.named_modules():
            assigned = next((own for own, buffer in layer._buffers.items() if isinstance(buffer, fx.Proxy)), None)
            if assigned is not None:
                layer_name = f"layer '{name}' ({type(layer).__name__})" if name else "it"
                raise CannotStack(f"{layer_name} assigns its buffer '{assigned}' in its forward pass")
        for name, value in vars(traced).items():
            if name.startswith("_tensor_constant"):  # The tracer stores other tensors as attributes of this name.
                setattr(self.network, name, value)
        if sum(node.op == "placeholder" for node in graph.nodes) != 1:
            raise CannotStack("its forward pass takes more than one input")
        pool_before_relu(graph, self._layers)
        return graph

    def _plan(self, graph: fx.Graph) -> list[_Step]:
        nodes = list(graph.nodes)
        last_use = {source: node for node in nodes for source in node.all_input_nodes}
        return [
            _Step(
                node,
                self._rule(node),
                _is_plain(node),
                node.op != "call_module" or _keeps_common(self._layers[str(node.target)]),
                tuple(source for source in node.all_input_nodes if last_use[source] is node),
            )
            for node in nodes
        ]

    def _rule(self, node: fx.Node) -> Callable[..., Any]:
        if node.op == "call_module":
            return self._layer_rule(node)
        if node.op == "get_attr":
            return partial(self._attribute, str(node.target))
        if node.op == "call_function":
            if node.target in PACKING:
                name = node.target.__name__
                raise CannotStack(
                    f"it packs sequences ({name}), which only the loop engine can do; padded ones can be stacked"
                )
            if node.target in (torch.relu, F.relu) and may_overwrite(node, self._layers):
                return lambda now, x, **_: relu_in_place(x)
            return partial(self._function, node.target)  # type: ignore[arg-type]
        if node.op == "call_method":
            return partial(self._method, str(node.target))
        return lambda now: None

    def _layer_rule(self, node: fx.Node) -> Callable[..., Any]:
        name = str(node.target)
        layer = self._layers[name]
        if type(layer) is nn.ReLU and may_overwrite(node, self._layers):
            return lambda now, x: relu_in_place(x)
        return self.rule_of_layer(name, layer)

    def rule_of_layer(self, name: str, layer: nn.Module) -> Callable[..., Any]:
        """Return the function that computes a layer for k clients: (pass, *arguments) -> value.

        Args:
            name: name of the layer in the network.
            layer: the layer of the network for one client.

        Raises:
            CannotStack: the layer has no rule, and `torch.vmap` does not support it.
        """
        of_common = rule_of(layer) if is_common(layer, name, self.common_names) else None
        if of_common is not None:
            return partial(_layer, of_common, layer, name)
        what = obstacle(layer)
        if what is not None:
            raise CannotStack(f"layer '{name}' ({type(layer).__name__}) {what}")
        if type(layer).__mro__[1:2] == (Adapter,) and isinstance(layer, nn.Linear):
            return partial(_layer, adapted, layer, name)
        if type(layer) in MODULES:
            return partial(_layer, MODULES[type(layer)], layer, name)
        copies = _PerThread(layer)
        if next(layer.parameters(), None) is None:
            return lambda now, *args, **kwargs: self._one_by_one(now, copies(now), *args, **kwargs)
        self.vectorised = True
        same = self.common_names
        draws = self._draws or any(isinstance(inner, StreamDropout) for inner in layer.modules())
        return lambda now, *args, **kwargs: with_vmap(copies(now), name, now, *args, common=same, draws=draws, **kwargs)

    def _function(self, function: Callable[..., Any], now: Pass, *args: Any, **kwargs: Any) -> Any:
        if not holds_activation(args) and not holds_activation(kwargs):
            return function(*args, **kwargs)  # Its arguments are shapes and numbers.
        if self._draws and now.training and function in OWN:
            return drawn(function, now, *args, **kwargs)
        if function in FUNCTIONS:
            return FUNCTIONS[function](*args, **kwargs)
        return self._one_by_one(now, function, *args, **kwargs)

    def _method(self, method: str, now: Pass, *args: Any, **kwargs: Any) -> Any:
        if method in METHODS and isinstance(args[0], Activation):
            return METHODS[method](*args, **kwargs)
        call = partial(_call_method, method)
        return self._one_by_one(now, call, *args, **kwargs)

    def _one_by_one(self, now: Pass, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self._draws and now.training:
            return drawn_one_by_one(function, now, MaskSource(), *args, **kwargs)
        return one_by_one(function, *args, **kwargs)

    def _attribute(self, name: str, now: Pass) -> Any:
        if name in now.tensors:
            tensor = now.tensors[name]
            return Activation(tensor, len(tensor))
        return operator.attrgetter(name)(self.network)  # It is a constant.


def _is_plain(node: fx.Node) -> bool:
    simple = (int, float, str, bool, type(None))
    return all(isinstance(a, (fx.Node, *simple)) for a in node.args) and all(
        isinstance(a, simple) for a in node.kwargs.values()
    )


def _spread(step: _Step, values: Mapping[fx.Node, Any], clients: int) -> Any:
    """Return the arguments of a step; repeat common values for each client, unless the rule accepts [1, ...]."""
    inputs = (values[source] for source in step.node.all_input_nodes)
    common = all(value.clients == 1 for value in inputs if isinstance(value, Activation))

    def find(node: fx.Node) -> Any:
        value = values[node]
        unchanged = (step.keeps_common and common) or not isinstance(value, Activation)
        return value if unchanged else value.spread(clients)

    return fx.map_arg((step.node.args, step.node.kwargs), find)


class _PerThread:
    """Copies of a layer, one for each thread, since `functional_call` changes the layer while it runs."""

    def __init__(self, layer: nn.Module) -> None:
        self._layer, self._local = layer, threading.local()

    def __call__(self, now: Pass) -> nn.Module:
        if not hasattr(self._local, "layer"):
            self._local.layer = copy.deepcopy(self._layer)
        layer: nn.Module = self._local.layer
        return layer.train(now.training)


class Tracer(fx.Tracer):
    """Tracer that does not enter the layers of torch.nn, ours that replace some, layers with adapters, and packing."""

    def __init__(self) -> None:
        super().__init__((math,), PACKING)
        # As a module to wrap, this one would have its other names wrapped too, `Tensor` among them.
        self._autowrap_search.append(nn.utils.rnn)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Return True if a module is computed as a whole."""
        ours = (StreamDropout, Adapter, *STREAMS.values())
        return isinstance(m, ours) or super().is_leaf_module(m, module_qualified_name)


class _Counter(fx.Interpreter):
    """Interpreter that runs the network for one client and counts the numbers that it writes; views write none.

    Attributes:
        count: the numbers.
        steps: steps of all layers and directions of each recurrent layer, by name.
    """

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.count, self.steps = 0, dict[str, int]()

    def call_module(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        layer = self.fetch_attr(target)
        if isinstance(layer, nn.RNNBase):
            numbers, self.steps[target] = kept_numbers(layer, args[0].shape)
            self.count += numbers
        return super().call_module(target, args, kwargs)

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if isinstance(result, Tensor) and n.op not in ("output", "get_attr"):
            sources = [self.env[source] for source in n.all_input_nodes if source in self.env]
            memory = {source.data_ptr() for source in sources if isinstance(source, Tensor)}
            self.count += result.numel() if result.data_ptr() not in memory else 0
        return result


class _Patches(fx.Interpreter):
    """Interpreter that runs the network for one client and counts the entries of its convolutions' patches."""

    def __init__(self, module: fx.GraphModule, names: Sequence[str], batch: int) -> None:
        super().__init__(module)
        self._batch, self.counts = batch, dict.fromkeys(names, 0)

    def call_module(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if target in self.counts:
            entries = numbers_of_patches(self.fetch_attr(target), (self._batch, *args[0].shape[1:]))
            self.counts[target] = max(self.counts[target], entries)
        return super().call_module(target, args, kwargs)


def _keeps_common(layer: nn.Module) -> bool:
    """Return True if a layer does the same for all clients, or its rule accepts an input that they share."""
    if type(layer) in (nn.Conv1d, nn.Conv2d, nn.Conv3d):
        return True
    return not isinstance(layer, StreamDropout) and next(chain(layer.parameters(), layer.buffers()), None) is None


def _layer(rule: Callable[..., Any], layer: nn.Module, name: str, now: Pass, *args: Any, **kwargs: Any) -> Any:
    return rule(layer, name, now, *args, **kwargs)


def _call_method(method: str, first: Any, *rest: Any, **more: Any) -> Any:
    return getattr(first, method)(*rest, **more)


def _aliases(network: nn.Module) -> dict[str, str]:
    """Map further names of tied parameters and buffers to the name under which they are stacked."""
    first_name = {id(t): name for name, t in [*network.named_parameters(), *network.named_buffers()]}
    everything = [
        *network.named_parameters(remove_duplicate=False),
        *network.named_buffers(remove_duplicate=False),
    ]
    return {name: first_name[id(t)] for name, t in everything if first_name[id(t)] != name}


def _describe(node: fx.Node, layers: Mapping[str, nn.Module]) -> str:
    if node.op == "call_module":
        return f"layer '{node.target}' ({type(layers[str(node.target)]).__name__})"
    name = getattr(node.target, "__name__", node.target)
    return f"operation '{name}'"
