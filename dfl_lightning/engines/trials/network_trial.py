"""Trial of a stacked network before the run: two stacked clients are compared with two plain networks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dfl_lightning.engines.calling.adapted import source_of
from dfl_lightning.engines.float32 import float32_arithmetic
from dfl_lightning.engines.gradients import filled
from dfl_lightning.engines.stacked.cannot_stack import CannotStack
from dfl_lightning.engines.stacked.layers.passes import Pass
from dfl_lightning.engines.stacked.layers.rules import BATCH_NORMS
from dfl_lightning.engines.stacked.loss import sample_weights
from dfl_lightning.engines.stacked.networks.traced import StackedNetwork
from dfl_lightning.engines.trials.coupling import FEW, Run, close, samples_interact
from dfl_lightning.utils.code.frozen import FrozenNorm, keep_frozen_norms, stand_ins, tensors_of
from dfl_lightning.utils.code.module_copies import copy_of
from dfl_lightning.utils.errors import reason, reported_as


@torch.enable_grad()  # An evaluation without a fit builds its engine while gradients are switched off.
def try_out(stacked: StackedNetwork, inputs: Tensor, draws: Callable[[int], Tensor], couples: bool) -> str:
    """Compare two stacked clients with two plain networks: outputs, gradients, parameters and buffers.

    The comparison is in float64, in which rounding does not look like a difference; if something does not support
    float64, it is in the inputs' own type.

    Args:
        stacked: the network to try; its `couples_samples` is set.
        inputs: at least three of the data's inputs, [B, ...].
        draws: client -> the key of its dropout layers' masks, int32 [2].
        couples: True if the samples of a training batch are known to interact.

    Returns:
        The limit of the comparison, in a few words; empty if there is none.

    Raises:
        CannotStack: something fails or differs; the message names the layer if it is known.
    """
    try:
        exactly = _Comparison(stacked, inputs.double(), draws)
        exactly.check(couples)
    except CannotStack as difference:
        if not difference.by_failing or inputs.dtype == torch.float64:
            raise
        failure = difference
    else:
        return exactly.note
    name = str(inputs.dtype).removeprefix("torch.")
    with float32_arithmetic(tf32=False):  # The rounding of TensorFloat32 would look like a difference.
        _Comparison(stacked, inputs, draws).check(couples)
    return f"in {name} only, for in float64 {failure}"


@torch.enable_grad()
def try_masks(stacked: StackedNetwork, inputs: Tensor, draws: Callable[[int], Tensor]) -> None:
    """Set `masks_padding` of the network: True if clients with unequal batches can be computed together.

    They can if samples interact in batch norms only, and if results with padding equal those of plain networks.

    Args:
        stacked: the network, after `try_out`.
        inputs: at least three of the data's inputs, [B, ...], better a whole batch.
        draws: client -> the key of its dropout layers' masks, int32 [2].
    """
    layers = stacked.network.modules()
    norms = [layer for layer in layers if isinstance(layer, _BatchNorm) and not isinstance(layer, FrozenNorm)]
    if not norms or any(type(layer) not in BATCH_NORMS for layer in norms):
        return
    try:
        alike = _Comparison(stacked, inputs[:FEW].double(), draws).masks()
    except CannotStack:  # Then only clients with equally many samples are computed together, as on a CPU.
        return
    stacked.masks_padding = alike and not _interact_without_norms(stacked.network, inputs, draws)


@torch.enable_grad()
def try_reduced(
    stacked: StackedNetwork, inputs: Tensor, draws: Callable[[int], Tensor], reduced: AbstractContextManager[Any]
) -> None:
    """Try a forward pass of two stacked clients in the reduced precision of the run.

    Layers without a rule are computed by `torch.vmap`. In it autocast covers some operations only; others then get
    operands of two types, and fail.

    Args:
        stacked: the network, after `try_out`.
        inputs: some of the data's inputs, [B, ...], in the run's precision.
        draws: client -> the key of its dropout layers' masks, int32 [2].
        reduced: the context of forward passes.

    Raises:
        CannotStack: an operation fails; the message names the layer if it is known.
    """
    comparison, sizes = _Comparison(stacked, inputs, draws), [len(inputs)] * 2
    for training in (True, False):
        with reduced:
            comparison.together(training, comparison._plain(training, sizes)[1])


@dataclass(frozen=True)
class _Result:
    """Results of a plain pass: outputs, gradients of a weighted sum of them, parameters and buffers after the pass."""

    outputs: Tensor
    weights: Tensor
    gradients: dict[str, Tensor]
    state: dict[str, Tensor]


class _Comparison:
    """Comparison of two stacked clients with two plain networks.

    Args:
        stacked: the network to try.
        inputs: [B, ...], in the type of the computation.
        draws: client -> the key of its dropout layers' masks, int32 [2].

    Attributes:
        note: reason why the comparison is up to rounding only; empty if it is exact.
    """

    def __init__(self, stacked: StackedNetwork, inputs: Tensor, draws: Callable[[int], Tensor]) -> None:
        self._stacked, self._inputs, self._draws = stacked, inputs, draws
        plain = _twin(stacked, inputs.dtype)
        self._twins = [plain, _moved(plain, stacked.common)]
        self._tolerance: float | None = None  # None: the tolerance of the inputs' type.
        self.note = ""

    def check(self, couples: bool) -> None:
        """Compare all passes, and set `couples_samples` of the network; see `try_out`."""
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
        if self._stacked.vectorised:  # Some layers of torch have fast paths in evaluation that vmap does not support.
            what = self._difference(self._plain(False, uneven))
        with torch.no_grad():
            plain = self._plain(False, uneven)
            what = what or self._difference(plain)
            if what:
                raise CannotStack(f"its {what} in evaluation differ when clients are stacked")
            if self._difference(plain, common=True):
                raise CannotStack("its outputs differ when stacked clients are given the same inputs")

    def masks(self) -> bool:
        """Return True if clients of unequal sizes equal plain networks when batch norms ignore padding."""
        count = len(self._inputs)
        self._find_tolerance()
        return not self._difference(self._plain(True, [count, count // 2 + 1]), mask=True)

    def _find_tolerance(self) -> None:
        """Increase the tolerance if the network computes in a lower precision somewhere inside."""
        with _Types() as types, torch.no_grad():
            self._plain(False, [len(self._inputs)])
        lower = types.seen - {self._inputs.dtype}
        if lower:
            names = ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in lower))
            self._tolerance = 1e-3 if lower <= {torch.float32, torch.float64} else 3e-2
            self.note = f"up to rounding only, because the network computes in {names} somewhere"

    def _plain(self, training: bool, sizes: Sequence[int]) -> tuple[bool, list[_Result]]:
        """Run the plain networks on their first `sizes` samples; return the mode and the results."""
        with reported_as(lambda error: CannotStack(f"the plain network fails ({reason(error)})", by_failing=True)):
            return training, [self._pass(client, size, training) for client, size in enumerate(sizes)]

    def _pass(self, client: int, size: int, training: bool) -> _Result:
        network = _copied(self._twins[client], self._stacked.common).train(training)
        source_of(network).begin(self._draws(client))

        def failed(error: Exception) -> CannotStack:
            where = _last_entered(network, self._inputs[:size])
            return CannotStack(f"the plain network fails{where} ({reason(error)})", by_failing=True)

        with reported_as(failed), self._stacked.norms.guard(1):  # 1: correct the gradients of all norms.
            outputs = network(self._inputs[:size].clone())
        weights = torch.linspace(0.5, 1.5, outputs.numel(), dtype=outputs.dtype, device=outputs.device)
        weights = weights.view_as(outputs)
        trained = {name: p for name, p in network.named_parameters() if p.requires_grad}
        gradients: dict[str, Tensor] = {}
        if torch.is_grad_enabled():
            grads = torch.autograd.grad((outputs * weights).sum(), list(trained.values()), allow_unused=True)
            gradients = {name: filled(g, trained[name]) for name, g in zip(trained, grads, strict=True)}
        return _Result(outputs.detach(), weights, gradients, dict(_named(network)))

    def _difference(self, plain: tuple[bool, list[_Result]], common: bool = False, mask: bool = False) -> str:
        """Name the first kind of result that differs from plain networks; return an empty string if none does.

        The kinds are outputs, gradients, parameters and buffers. With `common`, both clients get one copy of the
        inputs; with `mask`, batch norms get the weights of samples, and ignore padding.
        """
        training, results = plain
        sizes = [len(result.outputs) for result in results]
        tensors, outputs, gradients = self.together(training, results, common, mask)
        alike = {"outputs": True, "gradients": True, "parameters": True, "buffers": True}
        for i, result in enumerate(results):
            alike["outputs"] &= self._close(outputs[i, : sizes[i]].detach(), result.outputs)
            for name, gradient in gradients.items():
                expected = result.gradients[name]
                mine = torch.zeros_like(expected) if gradient is None else gradient[i]
                alike["gradients"] &= self._close(mine, expected)
            for name, value in result.state.items():
                if tensors[name].data_ptr() == value.data_ptr():
                    continue  # It is one tensor of all clients, and may be large.
                kind = "parameters" if isinstance(value, nn.Parameter) else "buffers"
                alike[kind] &= self._close(tensors[name][i].detach().to(value.dtype), value.detach())
        return next((what for what, fine in alike.items() if not fine), "")

    def together(
        self, training: bool, results: Sequence[_Result], common: bool = False, mask: bool = False
    ) -> tuple[dict[str, Tensor], Tensor, dict[str, Tensor | None]]:
        """Run a stacked pass; return parameters and buffers after it, outputs and gradients; see `_difference`."""
        sizes = [len(result.outputs) for result in results]
        parts = [dict(_named(twin)) for twin in self._twins]
        tensors = {
            name: torch.stack([part[name].detach() for part in parts])
            for name in parts[0]
            if name not in self._stacked.common
        }  # They come first: the number of clients is that of the first tensor.
        same = {name: t.detach() for name, t in parts[0].items() if name in self._stacked.common}
        tensors |= {name: tensor.expand(len(results), *tensor.shape) for name, tensor in same.items()}
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
            grads: Sequence[Tensor | None] = ()
            if torch.is_grad_enabled():
                grads = torch.autograd.grad(total, leaves, allow_unused=True)  # type: ignore[arg-type]
        return tensors, outputs, dict(zip(wanted, grads, strict=False))

    def _close(self, found: Tensor, expected: Tensor) -> bool:
        return close(found, expected, self._tolerance)


class _Types(TorchDispatchMode):
    """Context that collects the floating types of operations' results."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[torch.dtype] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.seen |= {
            leaf.dtype for leaf in tree_leaves(result) if isinstance(leaf, Tensor) and leaf.is_floating_point()
        }
        return result


def _interact_without_norms(network: nn.Module, inputs: Tensor, draws: Callable[[int], Tensor]) -> bool:
    """Return True if samples interact in training even when batch norms use their running statistics."""

    def run_on(device: torch.device) -> Run:
        there = copy_of(network).to(device).train()
        for layer in there.modules():
            if isinstance(layer, BATCH_NORMS):
                layer.eval()

        def run(inputs: Tensor) -> list[Tensor]:
            source_of(there).begin(draws(0))
            return [there(inputs.clone()), *(buffer.clone() for buffer in there.buffers())]

        return run

    with torch.no_grad():
        return samples_interact(run_on, inputs)


def _twin(stacked: StackedNetwork, dtype: torch.dtype) -> nn.Module:
    """Copy the network in another type; a common tensor that has the type is not copied."""
    own = tensors_of(stacked.network)
    common = {name: own[name].detach() for name in own if name in stacked.common}
    values = {name: t.to(dtype) if t.is_floating_point() else t for name, t in common.items()}
    plain = copy_of(stacked.network, stand_ins(stacked.network, values)).to(dtype)
    keep_frozen_norms(plain)
    return plain


def _copied(network: nn.Module, common: frozenset[str]) -> nn.Module:
    """Copy the network without copies of its common tensors."""
    own = tensors_of(network)
    return copy_of(network, {id(own[name]): own[name] for name in own if name in common})


def _moved(network: nn.Module, common: frozenset[str]) -> nn.Module:
    """Copy the network for another client, with all floating numbers but common ones a little larger."""
    other = _copied(network, common)
    with torch.no_grad():
        for name, tensor in _named(other):
            if tensor.is_floating_point() and name not in common:
                steps = torch.arange(tensor.numel(), dtype=tensor.dtype, device=tensor.device).view(tensor.shape)
                tensor += 0.01 * (1 + torch.sin(steps))
    return other


def _fails_together(error: Exception) -> CannotStack:
    note = next(iter(getattr(error, "__notes__", [])), "")
    where = note.removeprefix("in ") or "its forward pass"
    return CannotStack(f"{where} fails for several clients at once ({reason(error)})", by_failing=True)


def _last_entered(network: nn.Module, inputs: Tensor) -> str:
    """Name the layer that a failing forward pass entered last, as the end of a message: " in layer '...'"."""
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
    except Exception:  # The same failure has been reported already; here only the layer is needed.
        return entered[-1] if entered else ""
    finally:
        for hook in hooks:
            hook.remove()
    return ""


def _named(network: nn.Module) -> list[tuple[str, Tensor]]:
    return [*network.named_parameters(), *network.named_buffers()]
