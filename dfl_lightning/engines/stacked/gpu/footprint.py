"""Memory of one client's step on a GPU, determined without computing numbers."""

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
from dfl_lightning.engines.stacked.networks.traced import StackedNetwork
from dfl_lightning.engines.stacked.parameters import staged
from dfl_lightning.utils.code.frozen import stand_ins
from dfl_lightning.utils.code.module_copies import copy_of
from dfl_lightning.utils.errors import is_out_of_memory, reason


@dataclass(frozen=True)
class Footprint:
    """Memory of one client in a step with full batches.

    Args:
        step: peak bytes of a forward and backward pass, with the model and its gradients.
        rest: bytes of other tensors: the optimizer's state, rows that an objective reads.
        largest: numbers in the largest tensor.
        patches: numbers in the patches of each convolution that can be unfolded, by name.
        itemsize: bytes of a number.
        note: reason why this is an estimate; empty if it is not.
    """

    step: int
    rest: int
    largest: int
    patches: Mapping[str, int] = field(default_factory=dict)
    itemsize: int = 4
    note: str = ""

    def bytes(self, unfolded: frozenset[str] = frozenset()) -> int:
        """Return the peak bytes of one client with these unfolded layers.

        Patches of every unfolded layer are kept for the backward pass, and two more copies of the largest exist for a
        moment.
        """
        patches = [self.patches[name] for name in unfolded]
        return self.step + self.rest + self.itemsize * (sum(patches) + 2 * max(patches, default=0))

    def longest(self, unfolded: frozenset[str] = frozenset()) -> int:
        """Return the size of one client's largest tensor, in numbers, with these unfolded layers."""
        return max(1, self.largest, *(self.patches[name] for name in unfolded))


def footprint_of(
    network: nn.Module,
    cost: Cost,
    example: Tensor,
    config: EngineConfig,
    rows: int = 0,
    targets: Tensor | None = None,
    form: type[StackedNetwork] = StackedNetwork,
) -> Footprint:
    """Determine the memory of a client's step.

    The step is run with torch's fake tensors, which have no numbers. If the network does not support these, its memory
    is estimated from the sizes of its activations.

    Args:
        network: the network for one client, after `replace_dropout_layers`.
        cost: cost of a step.
        example: inputs with the shape and type of the data, [B, ...].
        config: has batch size, loss and type of numbers.
        rows: number of rows that are kept in addition to the model: its start, rows that an objective reads.
        targets: targets with the shape and type of the data's, [B, ...]; None: classes.
        form: the kind of stacked network.
    """
    # A copy, since layers may keep something of the fake pass.
    stacked = form(copy_of(network, stand_ins(network, config.base)).eval(), common=config.base)
    patches = stacked.patches(torch.zeros_like(example[:2]), config.largest_batch)
    # One more row is for gradients in the memory layout of the optimizer.
    rest = (cost.states + rows + 1) * cost.columns * cost.itemsize
    note = ""
    try:
        step, largest = _fake_step(
            stacked, example, config, torch.zeros(1, dtype=torch.long) if targets is None else targets
        )
    except Exception as error:  # An operation of the user does not support fake tensors.
        if is_out_of_memory(error):
            raise  # This says nothing about the network.
        note = f"estimated from activations: {reason(error)}"
        step = cost.bytes_with(config.largest_batch) - cost.states * cost.columns * cost.itemsize
        largest = max(cost.activations * config.largest_batch, cost.columns)
    return Footprint(step, rest, largest, patches, cost.itemsize, note)


def _fake_step(stacked: StackedNetwork, example: Tensor, config: EngineConfig, like: Tensor) -> tuple[int, int]:
    """Run a step with fake tensors; return its peak bytes, and the size of the largest tensor in numbers."""
    size, loss = config.largest_batch, StackedLoss(config.loss)
    with FakeTensorMode(allow_non_fake_inputs=True), Live() as live, torch.enable_grad():
        plain = [*stacked.network.named_parameters(), *stacked.network.named_buffers()]
        plain = [(name, tensor) for name, tensor in plain if name not in stacked.common]
        tensors = {name: staged(torch.zeros(1, *t.shape, dtype=t.dtype)) for name, t in plain}
        wanted = [tensors[name].requires_grad_() for name, p in plain if p.requires_grad]
        inputs = torch.zeros(1, size, *example.shape[1:], dtype=config.dtype)
        labels = torch.zeros(1, size, *like.shape[1:], dtype=target_type(like, config.dtype))
        masks = torch.zeros(1, 2, dtype=torch.int32)
        weights = torch.zeros(1, size, dtype=config.dtype)
        has_batch_norms = any(isinstance(layer, BATCH_NORMS) for layer in stacked.network.modules())
        with config.arithmetic(inputs.device):
            scores = stacked(Pass(dict(tensors), True, masks, None, weights if has_batch_norms else None), inputs)
            losses = loss(scores, labels, [size], weights)
        torch.autograd.grad(losses.sum(), wanted, allow_unused=True)
    return live.peak, live.largest


class Live(TorchDispatchMode):
    """Context that counts the memory of the tensors which are created in it, while they are referenced.

    Attributes:
        now: present bytes.
        peak: largest number of bytes so far.
        largest: numbers in the largest tensor so far.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = self.largest = 0
        self._counted: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count the tensors that an operation returns."""
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                self._count(tensor)
        return result

    def _count(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        self.largest = max(self.largest, tensor.numel())
        if storage._cdata in self._counted:
            return
        self._counted.add(storage._cdata)
        self.now += storage.nbytes()
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._discount, storage._cdata, storage.nbytes())

    def _discount(self, address: int, size: int) -> None:
        self._counted.discard(address)
        self.now -= size
