"""Trial of how a user's network is called: a few passes before the run find its outputs and its random draws."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.hooks import RemovableHandle

from dfl_lightning.data.parts import Parts
from dfl_lightning.engines.calling.adapted import Calling, prepare, scores_of
from dfl_lightning.engines.calling.own_draws import OwnDraws
from dfl_lightning.engines.dropout_layers import mask_key
from dfl_lightning.utils.code.frozen import stand_ins
from dfl_lightning.utils.code.module_copies import copy_of
from dfl_lightning.utils.errors import UserError
from dfl_lightning.utils.randomness.global_generators import changed, states

_TORCH = "torch's global generator"


def find_calling(network: nn.Module, example: Tensor, parts: Parts | None = None) -> tuple[Calling, Any]:
    """Find out how a network is called, by passes of a copy in training and in evaluation.

    Args:
        network: the user's network.
        example: two inputs, [2, ...]; rows if there are parts.
        parts: the tensors that a row consists of; None: the row is the input.

    Returns:
        The calling, and the outputs of an evaluation: scores, or whatever the network returns instead.

    Raises:
        UserError: the network draws in a way that a run could not repeat, or returns something else in training.
    """
    name = f"model.network {type(network).__name__}"
    trial = _copied(network, example.device)
    source = prepare(trial, Calling(parts, draws=True))
    with torch.no_grad(), _drawing() as drawn:
        outputs = trial.eval()(example.clone())
    _refuse_draws(name, drawn, " in evaluation")
    scores = scores_of(outputs)
    source.begin(mask_key(0))
    with torch.no_grad(), _drawing() as drawn:
        trained = trial.train()(example.clone())
    _refuse_draws(name, [generator for generator in drawn if generator != _TORCH], " in training")
    if isinstance(outputs, Tensor) and not isinstance(trained, Tensor):
        raise UserError(
            f"{name} returns a {type(trained).__name__} in training and scores in evaluation; switch its further "
            "outputs off (aux_logits=False, for example), or return the scores only"
        )
    calling = Calling(parts, scores is not outputs, source.functional)
    if drawn:
        calling = replace(calling, foreign=_place(trial, example))
    if isinstance(scores, Tensor) and (source.call or drawn):
        _refuse_draws_in_backward(name, network, calling, example)
    return calling, scores


def evaluated(network: nn.Module, calling: Calling, inputs: Tensor) -> Any:
    """Return the outputs of a copy of a network in an evaluation of inputs [B, ...]."""
    trial = _copied(network, inputs.device)
    prepare(trial, calling)
    with torch.no_grad():
        return trial.eval()(inputs.clone())


def _copied(network: nn.Module, device: torch.device) -> nn.Module:
    """Copy a network to a device, without a second copy of frozen parameters that are there already."""
    frozen = {name: p.detach() for name, p in network.named_parameters() if not p.requires_grad}
    return copy_of(network, stand_ins(network, frozen)).to(device)


@contextmanager
def _drawing() -> Iterator[list[str]]:
    """Yield a list that has, after the block, the names of the global generators from which the block has drawn."""
    drawn: list[str] = []
    before, state = states(), torch.get_rng_state()
    try:
        yield drawn
        drawn += changed(before)
    finally:
        torch.set_rng_state(state)


def _refuse_draws(name: str, drawn: list[str], where: str) -> None:
    if drawn:
        raise UserError(
            f"{name} draws random numbers from {' and '.join(drawn)}{where}, so its runs could not be repeated; draw "
            "in training only, by functions of torch (F.dropout, torch.rand_like) or by nn.Dropout layers"
        )


def _refuse_draws_in_backward(name: str, network: nn.Module, calling: Calling, example: Tensor) -> None:
    """Refuse a network whose backward pass draws again, as activation checkpointing does: masks would differ."""
    trial = _copied(network, example.device).train()
    source = prepare(trial, calling)
    source.begin(mask_key(0))
    trained = [p for p in trial.parameters() if p.requires_grad]
    with torch.enable_grad(), _drawing():
        scores = trial(example.clone())
        if not scores.requires_grad or not trained:
            return  # A later trial says so.
        before = source.call
        with OwnDraws(source), _RandomOperations([("", "")]) as seen:
            torch.autograd.grad(scores.sum(), trained, allow_unused=True)
    if source.call > before or seen.names:
        raise UserError(
            f"{name} draws again in its backward pass, where activation checkpointing computes layers a second time "
            "with other masks; switch checkpointing off (gradient_checkpointing_disable() of transformers), or set "
            "its dropout to 0"
        )


def _place(trial: nn.Module, example: Tensor) -> str:
    """Name the layer and the operation that draw from torch's global generator first, in a training pass."""
    entered: list[tuple[str, str]] = [("", "")]
    hooks: list[RemovableHandle] = []

    def leave(*_: Any) -> None:
        entered.pop()

    for name, layer in trial.named_modules():
        if not name:
            continue
        mark = (name, type(layer).__name__)
        hooks.append(layer.register_forward_pre_hook(lambda *_, mark=mark: entered.append(mark)))
        hooks.append(layer.register_forward_hook(leave))
    try:
        with torch.no_grad(), _drawing(), _RandomOperations(entered) as seen:
            trial.train()(example.clone())
    finally:
        for hook in hooks:
            hook.remove()
    return seen.names[0] if seen.names else "a function"


class _RandomOperations(TorchDispatchMode):
    """Context that names the operations which draw from torch's global generator of the CPU, with their layers.

    Args:
        entered: names and types of the layers that are being computed, the innermost one last.

    Attributes:
        names: for example `rand_like in layer 'body' (Noise)`.
    """

    def __init__(self, entered: list[tuple[str, str]]) -> None:
        super().__init__()
        self._entered = entered
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call an operation, and keep its name if it draws."""
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **(kwargs or {}))
        before = torch.get_rng_state()
        result = func(*args, **(kwargs or {}))
        if not torch.equal(torch.get_rng_state(), before):
            name, kind = self._entered[-1]
            layer = f" in layer '{name}' ({kind})" if name else ""
            self.names.append(f"{func.overloadpacket.__name__}{layer}")
        return result
