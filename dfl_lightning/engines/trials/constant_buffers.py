"""Search for the buffers that no training pass writes, which are the same for all clients."""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from dfl_lightning.data import ClientData
from dfl_lightning.engines.calling.adapted import Calling, prepare
from dfl_lightning.engines.dropout_layers import mask_key
from dfl_lightning.engines.trials.trial import examples
from dfl_lightning.utils.code.frozen import keep_frozen_norms, stand_ins
from dfl_lightning.utils.code.module_copies import copy_of, pruning_masks
from dfl_lightning.utils.errors import UserError, reason, reported_as
from dfl_lightning.utils.randomness.random_streams import stream_seed


def constant_buffers(
    network: nn.Module, data: ClientData, dtype: torch.dtype, seed: int, calling: Calling | None = None
) -> tuple[str, ...]:
    """List the buffers that two training passes and an evaluation leave as they are, in the network's order.

    Statistics of norms are never among them, and neither are masks of pruned layers. A network without other buffers
    is not tried.

    Args:
        network: the network with its first values; it is not changed.
        data: the clients' data.
        dtype: type of the run's models.
        seed: the run's seed, for the masks of dropout layers.
        calling: how the network is called; None: in the usual way.

    Raises:
        UserError: a pass fails.
    """
    statistics = {
        f"{name}.{leaf}".removeprefix(".")
        for name, layer in network.named_modules()
        if isinstance(layer, _NormBase)
        for leaf, _ in layer.named_buffers(recurse=False)
    }
    names = [n for n, _ in network.named_buffers() if n not in statistics | pruning_masks(network)]
    if not names:
        return ()
    frozen = {name: p.detach().to(dtype) for name, p in network.named_parameters() if not p.requires_grad}
    copied = copy_of(network, stand_ins(network, frozen)).to(data.images.device, dtype)
    keep_frozen_norms(copied)
    masks, (inputs, _) = prepare(copied, calling or Calling()), examples(data, 3, dtype)
    layers = dict(copied.named_modules())
    homes = {name: (layers[name.rpartition(".")[0]], name.rpartition(".")[2]) for name in names}
    first = {name: (getattr(layer, leaf), getattr(layer, leaf)._version) for name, (layer, leaf) in homes.items()}
    draws = torch.get_rng_state()  # A user's own layer may draw from the global generator.
    try:
        for training in (True, True, False):
            copied.train(training)
            masks.begin(mask_key(stream_seed(seed, "try out", 0)))
            mode = "training" if training else "evaluation"
            fails = f"model.network {type(network).__name__} fails on a batch of {len(inputs)} samples in {mode}"
            with _reported(fails), torch.set_grad_enabled(training):
                copied(inputs.clone())
    finally:
        torch.set_rng_state(draws)
    now = {name: getattr(layer, leaf, None) for name, (layer, leaf) in homes.items()}
    return tuple(name for name in names if now[name] is first[name][0] and first[name][0]._version == first[name][1])


def _reported(fails: str) -> AbstractContextManager[None]:
    """Report any error of the user's network as one sentence, which begins as given."""
    return reported_as(lambda error: UserError(f"{fails} ({reason(error)})"))
