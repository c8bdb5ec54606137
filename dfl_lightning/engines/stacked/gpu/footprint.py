"""What a step of one client takes of a GPU's memory, found without computing anything."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dfl_lightning.data.client_data import target_type
from dfl_lightning.engines.config import EngineConfig
from dfl_lightning.engines.stacked.cost import Cost
from dfl_lightning.engines.stacked.layers.passes import Pass
from dfl_lightning.engines.stacked.layers.rules import BATCH_NORMS
from dfl_lightning.engines.stacked.loss import StackedLoss
from dfl_lightning.engines.stacked.network import StackedNetwork
from dfl_lightning.engines.stacked.parameters import staged
from dfl_lightning.utils.code.module_copies import copy_of
from dfl_lightning.utils.errors import is_out_of_memory, reason


@dataclass(frozen=True)
class Footprint:
    """One client, one step of full batches.

    Args:
        step: bytes of a forward and backward pass at its highest point, model and gradients included.
        rest: bytes of what lies there besides: the optimizer's state, rows that an objective reads.
        largest: numbers in the largest tensor.
        patches: numbers in the patches of each convolution that can be unfolded, by name.
        itemsize: bytes of a number.
        note: why this is an estimate; empty where it is not.
    """

    step: int
    rest: int
    largest: int
    patches: Mapping[str, int] = field(default_factory=dict)
    itemsize: int = 4
    note: str = ""

    def bytes(self, unfolded: frozenset[str] = frozenset()) -> int:
        """Of one client, at most.

        Patches of every unfolded layer are kept for the backward pass; two more of the largest are there for a moment.
        """
        patches = [self.patches[name] for name in unfolded]
        return self.step + self.rest + self.itemsize * (sum(patches) + 2 * max(patches, default=0))

    def longest(self, unfolded: frozenset[str] = frozenset()) -> int:
        """Numbers of one client in the largest tensor."""
        return max(1, self.largest, *(self.patches[name] for name in unfolded))


def footprint_of(
    network: nn.Module, cost: Cost, example: Tensor, config: EngineConfig, rows: int = 0, targets: Tensor | None = None
) -> Footprint:
    """The footprint of a client's step.

    The step is taken by tensors without numbers, torch's fake ones. A network that they cannot go through is
    estimated from the sizes of its activations.

    Args:
        network: the plain network, after `replace_dropout_layers`.
        cost: of a step.
        example: inputs, [B, ...]; their shape and type count.
        config: batch size, loss and type of numbers.
        rows: rows that lie beside a model: its start, what an objective reads.
        targets: of samples, [B, ...], whose shape and type count; None: classes.
    """
    stacked = StackedNetwork(copy_of(network).eval())  # its own: layers may keep something of a pass that is not real
    patches = stacked.patches(torch.zeros_like(example[:2]), config.batch_size)
    rest = (cost.states + rows + 1) * cost.columns * cost.itemsize  # one more: gradients as the optimizer takes them
    note = ""
    try:
        step, largest = _fake_step(
            stacked, example, config, torch.zeros(1, dtype=torch.long) if targets is None else targets
        )
    except Exception as error:  # an operation of the user's that knows no fake tensors
        if is_out_of_memory(error):
            raise  # which says nothing about the network
        note = f"estimated from activations: {reason(error)}"
        step = cost.bytes_per_client - cost.states * cost.columns * cost.itemsize
        largest = max(cost.activations * config.batch_size, cost.columns)
    return Footprint(step, rest, largest, patches, cost.itemsize, note)


def _fake_step(stacked: StackedNetwork, example: Tensor, config: EngineConfig, like: Tensor) -> tuple[int, int]:
    """Bytes of a step at its highest point, and numbers in the largest tensor."""
    size, loss = config.batch_size, StackedLoss(config.loss)
    with FakeTensorMode(allow_non_fake_inputs=True), Live() as live, torch.enable_grad():
        plain = [*stacked.network.named_parameters(), *stacked.network.named_buffers()]
        tensors = {name: staged(torch.zeros(1, *t.shape, dtype=t.dtype)) for name, t in plain}
        wanted = [tensors[name].requires_grad_() for name, p in plain if p.requires_grad]
        inputs = torch.zeros(1, size, *example.shape[1:], dtype=config.dtype)
        labels = torch.zeros(1, size, *like.shape[1:], dtype=target_type(like, config.dtype))
        masks = torch.zeros(1, 2, dtype=torch.int32)
        weights = torch.zeros(1, size, dtype=config.dtype)
        meet = any(isinstance(layer, BATCH_NORMS) for layer in stacked.network.modules())
        with config.arithmetic(inputs.device):
            scores = stacked(Pass(dict(tensors), True, masks, None, weights if meet else None), inputs)
            losses = loss(scores, labels, [size], weights)
        torch.autograd.grad(losses.sum(), wanted, allow_unused=True)
    return live.peak, live.largest


class Live(TorchDispatchMode):
    """Counts the memory of what is made inside, as long as it is referenced.

    Attributes:
        now: bytes at present.
        peak: bytes at the highest point.
        largest: numbers in the largest tensor.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = self.largest = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count what an operation returns."""
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                self._meet(tensor)
        return result

    def _meet(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        self.largest = max(self.largest, tensor.numel())
        if storage._cdata in self._known:
            return
        self._known.add(storage._cdata)
        self.now += storage.nbytes()
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._part, storage._cdata, storage.nbytes())

    def _part(self, address: int, size: int) -> None:
        self._known.discard(address)
        self.now -= size
