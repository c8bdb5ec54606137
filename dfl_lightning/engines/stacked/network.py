"""A plain network made to work on k clients at once: traced, planned, tried out against itself."""

from __future__ import annotations

import copy
import operator
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dfl_lightning.engines.coupling import FEW, close, samples_interact
from dfl_lightning.engines.dropout_layers import StreamDropout
from dfl_lightning.engines.float32 import float32_arithmetic
from dfl_lightning.engines.norm_strides import NormRisk
from dfl_lightning.engines.stacked.activation import Activation, holds_activation, one_by_one
from dfl_lightning.engines.stacked.convolution import can_unfold, numbers_of_patches
from dfl_lightning.engines.stacked.layers import (
    BATCH_NORMS,
    FUNCTIONS,
    METHODS,
    MODULES,
    obstacle,
    relu_in_place,
    with_vmap,
)
from dfl_lightning.engines.stacked.loss import sample_weights
from dfl_lightning.engines.stacked.passes import Pass
from dfl_lightning.utils.errors import reason, reported_as
from dfl_lightning.utils.module_copies import copy_of

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class CannotStack(Exception):
    """A network that the stacked engine cannot take; the message names the layer and the reason.

    Args:
        message: names the layer and the reason.
        by_failing: whether something failed while the network was tried out, where a difference would say more.

    Attributes:
        by_failing: something failed while the network was tried out, where a difference would say more.
    """

    def __init__(self, message: str, by_failing: bool = False) -> None:
        super().__init__(message)
        self.by_failing = by_failing


@dataclass(frozen=True)
class _Step:
    """One node of the traced network, with the rule that does it for k clients."""

    node: fx.Node
    run: Callable[..., Any]  # (pass, *arguments)
    plain: bool  # no other node's value is deeper inside the arguments than as one of them
    keeps_common: bool  # the rule takes what is the same for all clients as it is
    dead: tuple[fx.Node, ...]  # not needed after this step


class StackedNetwork:
    """The forward pass of k clients with a parameter tensor [k, *shape] for each parameter of the plain network.

    Args:
        network: the plain network, after `replace_dropout_layers`; kept, never written to.
        features: layers whose inputs a pass keeps, see `Pass.keeps_features`: names of the objective or the prediction
            -> names of layers.
        norms: which batches need the norms of the plain network mended, which it is compared with.

    Attributes:
        has_dropout: whether a training pass draws masks.
        couples_samples: whether a training pass mixes the samples of a batch (batch norms do), so that padding would
            take part; known after `try_out`.
        masks_padding: whether its batch norms, and nothing else, do so and leave padding out; see `try_masks`.
        unfolded: names of the convolutions that are done by patches and a product; see `autotune.choose_unfolded`.

    Raises:
        CannotStack: a layer that has neither a rule nor works under `torch.vmap`.
    """

    def __init__(
        self, network: nn.Module, features: Mapping[str, str] | None = None, norms: NormRisk = NormRisk.ALL
    ) -> None:
        self.network, self.norms = network, norms
        self._wanted: dict[str, list[str]] = {}  # layer -> what others call it
        for name, layer in (features or {}).items():
            self._wanted.setdefault(layer, []).append(name)
        self.has_dropout = any(isinstance(module, StreamDropout) for module in network.modules())
        self.unfolded: frozenset[str] = frozenset()
        self.couples_samples = True  # until `try_out` knows better
        self.masks_padding = False
        self.vectorised = False  # whether torch.vmap does layers with parameters
        self._aliases = _aliases(network)
        self._layers = dict(network.named_modules())
        for name, layer in self._layers.items():  # those of containers too, which a traced network passes by
            if isinstance(layer, torch.jit.ScriptModule):
                raise CannotStack(f"layer '{name}' is scripted" if name else "it is scripted")
            if any(getattr(layer, hooks) for hooks in _HOOKS):
                raise CannotStack(f"layer '{name}' ({type(layer).__name__}) has hooks" if name else "it has hooks")
        self._graphs = {mode: self._trace(mode) for mode in (True, False)}
        self._plans = {mode: self._plan(graph) for mode, graph in self._graphs.items()}
        called = {str(node.target) for node in self._graphs[True].nodes if node.op == "call_module"}
        for layer in self._wanted.keys() - called:
            raise CannotStack(f"the input of '{layer}' is wanted, which is made of several layers")

    def __call__(self, now: Pass, inputs: Tensor) -> Tensor:
        """Scores of k clients' inputs [k, B, ...], or of the same ones for all, [1, B, ...] -> [k, B, C]."""
        now.unfolded = self.unfolded
        if self._aliases:
            now.tensors = {**now.tensors, **{name: now.tensors[own] for name, own in self._aliases.items()}}
        values: dict[fx.Node, Any] = {}
        clients = len(next(iter(now.tensors.values()), inputs))
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
                elif step.plain:  # almost always
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

    def can_be_unfolded(self) -> list[str]:
        """Names of the convolutions that `unfolded` may hold, in the network's order."""
        nodes = (node for node in self._graphs[True].nodes if node.op == "call_module")
        names = dict.fromkeys(str(node.target) for node in nodes)  # a layer that is used twice counts once
        return [name for name in names if can_unfold(self._layers[name])]

    @property
    def calls(self) -> int:
        """Layers and functions that a pass in training calls."""
        return sum(node.op not in ("placeholder", "output", "get_attr") for node in self._graphs[True].nodes)

    def activations(self, inputs: Tensor) -> int:
        """Numbers that inputs [B, ...] become on their way through the plain network, themselves included."""
        counter = _Counter(fx.GraphModule(self.network, self._graphs[False]))
        with torch.no_grad():
            counter.run(inputs)
        return counter.count

    def patches(self, inputs: Tensor, batch: int) -> dict[str, int]:
        """Number of entries in the patches of a batch, for each convolution that can be computed by patches.

        Args:
            inputs: examples, [b, ...].
            batch: samples in the batch.
        """
        counter = _Patches(fx.GraphModule(self.network, self._graphs[False]), self.can_be_unfolded(), batch)
        with torch.no_grad():
            counter.run(inputs)
        return counter.counts

    # --- planning -----------------------------------------------------------------------------------------------------
    def _trace(self, training: bool) -> fx.Graph:
        # A copy: what a forward pass assigns to a layer is no tensor while it is traced.
        traced = copy_of(self.network).train(training)
        with reported_as(lambda error: CannotStack(f"its forward pass cannot be traced ({reason(error)})")):
            graph = _Tracer().trace(traced)
        for name, layer in traced.named_modules():
            assigned = next((own for own, buffer in layer._buffers.items() if isinstance(buffer, fx.Proxy)), None)
            if assigned is not None:
                layer_name = f"layer '{name}' ({type(layer).__name__})" if name else "it"
                raise CannotStack(f"{layer_name} assigns its buffer '{assigned}' in its forward pass")
        for name, value in vars(traced).items():
            if name.startswith("_tensor_constant"):  # tensors that are no attributes; the tracer makes them some
                setattr(self.network, name, value)
        if sum(node.op == "placeholder" for node in graph.nodes) != 1:
            raise CannotStack("its forward pass takes more than one input")
        _pool_before_relu(graph, self._layers)
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
            if node.target in (torch.relu, F.relu) and _may_overwrite(node, self._layers):
                return lambda now, x, **_: relu_in_place(x)
            return partial(_function, node.target)  # type: ignore[arg-type]
        if node.op == "call_method":
            return partial(_method, str(node.target))
        return lambda now: None

    def _layer_rule(self, node: fx.Node) -> Callable[..., Any]:
        name = str(node.target)
        layer = self._layers[name]
        what = obstacle(layer)
        if what is not None:
            raise CannotStack(f"layer '{name}' ({type(layer).__name__}) {what}")
        if type(layer) is nn.ReLU and _may_overwrite(node, self._layers):
            return lambda now, x: relu_in_place(x)
        if type(layer) in MODULES:
            return partial(_layer, MODULES[type(layer)], layer, name)
        own = _PerThread(layer)
        if next(layer.parameters(), None) is None:
            return lambda now, *args, **kwargs: one_by_one(own(now), *args, **kwargs)
        self.vectorised = True
        return lambda now, *args, **kwargs: with_vmap(own(now), name, now, *args, **kwargs)

    def _attribute(self, name: str, now: Pass) -> Any:
        if name in now.tensors:
            tensor = now.tensors[name]
            return Activation(tensor, len(tensor))
        return operator.attrgetter(name)(self.network)  # a constant

    # --- trying out ---------------------------------------------------------------------------------------------------
    @torch.enable_grad()  # an evaluation without a fit before it makes its engine where gradients are off
    def try_out(self, inputs: Tensor, draws: Callable[[int], Tensor], couples: bool) -> str:
        """Compare two clients stacked with two plain networks: outputs, gradients, and what they leave behind.

        In float64, where a difference is no rounding; where something has no float64, in the inputs' own type.

        Args:
            inputs: at least three of the data's inputs, [B, ...].
            draws: client -> the key of its dropout layers' masks, int32 [2].
            couples: whether the samples of a training batch are known to meet.

        Returns:
            What the comparison could not see, in a few words; empty where it is as it should be.

        Raises:
            CannotStack: something fails or differs; names the layer where it can.
        """
        try:
            exactly = _Comparison(self, inputs.double(), draws)
            exactly.check(couples)
        except CannotStack as difference:
            if not difference.by_failing or inputs.dtype == torch.float64:
                raise
            failure = difference
        else:
            return exactly.note
        name = str(inputs.dtype).removeprefix("torch.")
        with float32_arithmetic(tf32=False):  # the rounding of TensorFloat32 would be taken for a difference
            _Comparison(self, inputs, draws).check(couples)
        return f"in {name} only, for in float64 {failure}"

    @torch.enable_grad()
    def try_masks(self, inputs: Tensor, draws: Callable[[int], Tensor]) -> None:
        """Find out whether clients with unequal batches can go together: set `masks_padding`.

        They can where batch norms are all that lets samples interact, and the numbers are those of plain networks.

        Args:
            inputs: at least three of the data's inputs, [B, ...], better a whole batch.
            draws: as for `try_out`.
        """
        norms = [layer for layer in self._layers.values() if isinstance(layer, _BatchNorm)]
        if not norms or any(type(layer) not in BATCH_NORMS for layer in norms):
            return
        try:
            alike = _Comparison(self, inputs[:FEW].double(), draws).masks()
        except CannotStack:  # nothing is lost: as on a CPU, neighbours with equally many samples go together
            return
        self.masks_padding = alike and not _meet_without_norms(self.network, inputs, draws)


def _is_plain(node: fx.Node) -> bool:
    simple = (int, float, str, bool, type(None))
    return all(isinstance(a, (fx.Node, *simple)) for a in node.args) and all(
        isinstance(a, simple) for a in node.kwargs.values()
    )


def _spread(step: _Step, values: Mapping[fx.Node, Any], clients: int) -> Any:
    """The arguments of a step; what is common to the clients is spread, unless its rule takes it as it is."""
    inputs = (values[source] for source in step.node.all_input_nodes)
    common = all(value.clients == 1 for value in inputs if isinstance(value, Activation))

    def find(node: fx.Node) -> Any:
        value = values[node]
        as_it_is = (step.keeps_common and common) or not isinstance(value, Activation)
        return value if as_it_is else value.spread(clients)

    return fx.map_arg((step.node.args, step.node.kwargs), find)


class _PerThread:
    """A copy of a layer for each thread, in the mode of the pass: `functional_call` changes a layer while it lasts."""

    def __init__(self, layer: nn.Module) -> None:
        self._layer, self._local = layer, threading.local()

    def __call__(self, now: Pass) -> nn.Module:
        if not hasattr(self._local, "layer"):
            self._local.layer = copy.deepcopy(self._layer)
        own: nn.Module = self._local.layer
        return own.train(now.training)


class _Tracer(fx.Tracer):
    """Stops at the layers of torch.nn and at our own dropout layers."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, StreamDropout) or super().is_leaf_module(m, module_qualified_name)


class _Counter(fx.Interpreter):
    """Runs the plain network and counts the numbers that it writes; views write none."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.count = 0

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if isinstance(result, Tensor) and n.op not in ("output", "get_attr"):
            sources = [self.env[source] for source in n.all_input_nodes if source in self.env]
            memory = {source.data_ptr() for source in sources if isinstance(source, Tensor)}
            self.count += result.numel() if result.data_ptr() not in memory else 0
        return result


class _Patches(fx.Interpreter):
    """Runs the plain network and counts the patches that its convolutions would have."""

    def __init__(self, module: fx.GraphModule, names: Sequence[str], batch: int) -> None:
        super().__init__(module)
        self._batch, self.counts = batch, dict.fromkeys(names, 0)

    def call_module(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if target in self.counts:
            found = numbers_of_patches(self.fetch_attr(target), (self._batch, *args[0].shape[1:]))
            self.counts[target] = max(self.counts[target], found)
        return super().call_module(target, args, kwargs)


def _keeps_common(layer: nn.Module) -> bool:
    """Whether a layer treats all clients alike, or its rule knows what to do where they have the same input."""
    if type(layer) in (nn.Conv1d, nn.Conv2d, nn.Conv3d):
        return True
    return not isinstance(layer, StreamDropout) and next(chain(layer.parameters(), layer.buffers()), None) is None


def _layer(rule: Callable[..., Any], layer: nn.Module, name: str, now: Pass, *args: Any, **kwargs: Any) -> Any:
    return rule(layer, name, now, *args, **kwargs)


def _function(function: Callable[..., Any], now: Pass, *args: Any, **kwargs: Any) -> Any:
    if not holds_activation(args) and not holds_activation(kwargs):
        return function(*args, **kwargs)  # of shapes and numbers
    if function in FUNCTIONS:
        return FUNCTIONS[function](*args, **kwargs)
    return one_by_one(function, *args, **kwargs)


def _method(method: str, now: Pass, *args: Any, **kwargs: Any) -> Any:
    if method in METHODS and isinstance(args[0], Activation):
        return METHODS[method](*args, **kwargs)
    return one_by_one(lambda first, *rest, **more: getattr(first, method)(*rest, **more), *args, **kwargs)


def _aliases(network: nn.Module) -> dict[str, str]:
    """Further names of tied parameters and buffers -> the name under which they are stacked."""
    own = {id(t): name for name, t in [*network.named_parameters(), *network.named_buffers()]}
    everything = [
        *network.named_parameters(remove_duplicate=False),
        *network.named_buffers(remove_duplicate=False),
    ]
    return {name: own[id(t)] for name, t in everything if own[id(t)] != name}


# --- rewriting: exact, values and gradients ---------------------------------------------------------------------------
def _pool_before_relu(graph: fx.Graph, layers: Mapping[str, nn.Module]) -> None:
    """Relu -> max pool becomes max pool -> relu: the same numbers and gradients, with a quarter of the relu's work."""
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


def _may_overwrite(relu: fx.Node, layers: Mapping[str, nn.Module]) -> bool:
    """Whether nothing else reads the relu's input, nor the backward pass of the layer that made it."""
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


# --- trying out -------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class _Result:
    """What a plain pass comes to: outputs, gradients of a weighted sum of them, parameters and buffers afterwards."""

    outputs: Tensor
    weights: Tensor
    gradients: dict[str, Tensor]
    state: dict[str, Tensor]


class _Comparison:
    """Two clients stacked beside two plain networks.

    Args:
        stacked: the network that is tried out.
        inputs: [B, ...], in the type in which all is computed.
        draws: client -> the key of its dropout layers' masks, int32 [2].

    Attributes:
        note: why differences smaller than the rounding of float32 are not seen; empty where they are.
    """

    def __init__(self, stacked: StackedNetwork, inputs: Tensor, draws: Callable[[int], Tensor]) -> None:
        self._stacked, self._inputs, self._draws = stacked, inputs, draws
        plain = copy_of(stacked.network).to(inputs.dtype)
        self._twins = [plain, _moved(plain)]
        self._tolerance: float | None = None  # the ordinary one
        self.note = ""

    def check(self, couples: bool) -> None:
        """Set `couples_samples` of the network; see `StackedNetwork.try_out`."""
        count = len(self._inputs)
        whole, uneven = [count, count], [count, count // 2 + 1]
        self._find_tolerance()
        self._stacked.couples_samples = couples
        if couples or self._difference(self._plain(True, uneven)):
            self._stacked.couples_samples = True
            what = self._difference(self._plain(True, whole))
            if what:
                raise CannotStack(f"its {what} in training differ when clients are stacked")
        what = ""
        if self._stacked.vectorised:  # torch has fast ways for some layers in evaluation, which vmap has not
            what = self._difference(self._plain(False, uneven))
        with torch.no_grad():
            plain = self._plain(False, uneven)
            what = what or self._difference(plain)
            if what:
                raise CannotStack(f"its {what} in evaluation differ when clients are stacked")
            if self._difference(plain, common=True):
                raise CannotStack("its outputs differ when stacked clients are given the same inputs")

    def masks(self) -> bool:
        """Whether clients of unequal sizes are like plain networks, where batch norms leave padding out."""
        count = len(self._inputs)
        self._find_tolerance()
        return not self._difference(self._plain(True, [count, count // 2 + 1]), mask=True)

    def _find_tolerance(self) -> None:
        """Networks that compute in lower precision somewhere inside differ by its rounding."""
        with _Types() as types, torch.no_grad():
            self._plain(False, [len(self._inputs)])
        lower = types.seen - {self._inputs.dtype}
        if lower:
            names = ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in lower))
            self._tolerance = 1e-3 if lower <= {torch.float32, torch.float64} else 3e-2
            self.note = f"up to rounding only, because the network computes in {names} somewhere"

    def _plain(self, training: bool, sizes: Sequence[int]) -> tuple[bool, list[_Result]]:
        """The mode, and what the plain networks make of their first `sizes` samples."""
        with reported_as(lambda error: CannotStack(f"the plain network fails ({reason(error)})", by_failing=True)):
            return training, [self._pass(client, size, training) for client, size in enumerate(sizes)]

    def _pass(self, client: int, size: int, training: bool) -> _Result:
        network = copy.deepcopy(self._twins[client]).train(training)
        for module in network.modules():
            if isinstance(module, StreamDropout):
                module.source.begin(self._draws(client))

        def failed(error: Exception) -> CannotStack:
            where = _last_entered(network, self._inputs[:size])
            return CannotStack(f"the plain network fails{where} ({reason(error)})", by_failing=True)

        with reported_as(failed), self._stacked.norms.guard(1):  # 1: a norm has the gradients of its formula
            outputs = network(self._inputs[:size].clone())
        weights = torch.linspace(0.5, 1.5, outputs.numel(), dtype=outputs.dtype, device=outputs.device)
        weights = weights.view_as(outputs)
        trained = {name: p for name, p in network.named_parameters() if p.requires_grad}
        gradients: dict[str, Tensor] = {}
        if torch.is_grad_enabled():
            found = torch.autograd.grad((outputs * weights).sum(), list(trained.values()), allow_unused=True)
            filled = (torch.zeros_like(p) if g is None else g for p, g in zip(trained.values(), found, strict=True))
            gradients = dict(zip(trained, filled, strict=True))
        return _Result(outputs.detach(), weights, gradients, dict(_named(network)))

    def _difference(self, plain: tuple[bool, list[_Result]], common: bool = False, mask: bool = False) -> str:
        """What the stacked network does otherwise than plain ones: outputs, gradients, parameters or buffers.

        With `common`, it is given the inputs once, for all; with `mask`, batch norms know what is padding.
        """
        training, results = plain
        sizes = [len(result.outputs) for result in results]
        tensors = {
            name: torch.stack([dict(_named(twin))[name].detach() for twin in self._twins])
            for name, _ in _named(self._twins[0])
        }
        wanted = [name for name, p in self._twins[0].named_parameters() if p.requires_grad]
        leaves = [tensors[name].requires_grad_() for name in wanted]
        masks = torch.stack([self._draws(client) for client in range(len(results))])
        counts = torch.tensor(sizes, device=self._inputs.device)
        shares = sample_weights(counts, len(self._inputs), self._inputs.dtype) if mask else None
        now = Pass(dict(tensors), training, masks.to(self._inputs.device), sizes, shares)
        inputs = self._inputs.unsqueeze(0) if common else torch.stack([self._inputs] * len(results))
        with reported_as(_fails_together):
            outputs = self._stacked(now, inputs.clone())
            total = sum((outputs[i, : sizes[i]] * result.weights).sum() for i, result in enumerate(results))
            found: Sequence[Tensor | None] = ()
            if torch.is_grad_enabled():
                found = torch.autograd.grad(total, leaves, allow_unused=True)  # type: ignore[arg-type]
        alike = {"outputs": True, "gradients": True, "parameters": True, "buffers": True}
        for i, result in enumerate(results):
            alike["outputs"] &= self._close(outputs[i, : sizes[i]].detach(), result.outputs)
            for name, gradient in zip(wanted, found, strict=False):
                expected = result.gradients[name]
                mine = torch.zeros_like(expected) if gradient is None else gradient[i]
                alike["gradients"] &= self._close(mine, expected)
            for name, value in result.state.items():
                kind = "parameters" if isinstance(value, nn.Parameter) else "buffers"
                alike[kind] &= self._close(tensors[name][i].detach().to(value.dtype), value.detach())
        return next((what for what, fine in alike.items() if not fine), "")

    def _close(self, found: Tensor, expected: Tensor) -> bool:
        return close(found, expected, self._tolerance)


class _Types(TorchDispatchMode):
    """Which floating types the results of operations have."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[torch.dtype] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.seen |= {
            leaf.dtype for leaf in tree_leaves(result) if isinstance(leaf, Tensor) and leaf.is_floating_point()
        }
        return result


def _meet_without_norms(network: nn.Module, inputs: Tensor, draws: Callable[[int], Tensor]) -> bool:
    """Whether samples interact in training where batch norms take their running statistics."""
    network = copy_of(network).train()
    dropouts = [layer for layer in network.modules() if isinstance(layer, StreamDropout)]
    for layer in network.modules():
        if isinstance(layer, BATCH_NORMS):
            layer.eval()

    def run(inputs: Tensor) -> list[Tensor]:
        for layer in dropouts:
            layer.source.begin(draws(0))
        return [network(inputs.clone()), *(buffer.clone() for buffer in network.buffers())]

    with torch.no_grad():
        return samples_interact(run, inputs)


def _moved(network: nn.Module) -> nn.Module:
    """Another client: the same network with all floating numbers a little larger."""
    other = copy.deepcopy(network)
    with torch.no_grad():
        for _, tensor in _named(other):
            if tensor.is_floating_point():
                steps = torch.arange(tensor.numel(), dtype=tensor.dtype, device=tensor.device).view(tensor.shape)
                tensor += 0.01 * (1 + torch.sin(steps))
    return other


def _fails_together(error: Exception) -> CannotStack:
    note = next(iter(getattr(error, "__notes__", [])), "")
    where = note.removeprefix("in ") or "its forward pass"
    return CannotStack(f"{where} fails for several clients at once ({reason(error)})", by_failing=True)


def _last_entered(network: nn.Module, inputs: Tensor) -> str:
    """The layer that a forward pass which fails entered last, to go on with in a sentence."""
    entered: list[str] = []
    hooks = [
        layer.register_forward_pre_hook(
            lambda layer, args, name=name: entered.append(f" in layer '{name}' ({type(layer).__name__})")
        )
        for name, layer in network.named_modules()
        if name
    ]
    try:
        network(inputs.clone())
    except Exception:  # it has failed before, and was told of then: here only the place is looked for
        return entered[-1] if entered else ""
    finally:
        for hook in hooks:
            hook.remove()
    return ""


def _named(network: nn.Module) -> list[tuple[str, Tensor]]:
    return [*network.named_parameters(), *network.named_buffers()]


def _describe(node: fx.Node, layers: Mapping[str, nn.Module]) -> str:
    if node.op == "call_module":
        return f"layer '{node.target}' ({type(layers[str(node.target)]).__name__})"
    name = getattr(node.target, "__name__", node.target)
    return f"operation '{name}'"
