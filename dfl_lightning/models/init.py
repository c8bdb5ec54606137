"""Initial parameters of clients' models that are drawn for each client separately."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from dfl_lightning.utils.code.module_copies import computed_parameter, copy_of
from dfl_lightning.utils.errors import UserError
from dfl_lightning.utils.randomness.random_streams import stream_seed


def fresh_parameters(network: nn.Module, seed: int, node: int) -> nn.Module:
    """Return a copy of the network in which each layer has drawn new parameters by its `reset_parameters`.

    Layers whose parameters are all frozen do not draw.

    Args:
        network: a built network.
        seed: seed of the run.
        node: client or server that starts with these parameters; each has its own random stream.

    Raises:
        UserError: a layer has parameters but no `reset_parameters`, or computes a parameter in each pass, so that
            `reset_parameters` would not change it.
    """
    fresh = copy_of(network)
    frozen = {name for name, p in network.named_parameters(remove_duplicate=False) if not p.requires_grad}
    with torch.random.fork_rng(devices=[]):
        # torch.manual_seed would also seed all GPUs, whose generators fork_rng does not restore here.
        torch.default_generator.manual_seed(stream_seed(seed, "initial parameters", node))
        for name, module in fresh.named_modules():
            own = [f"{name}.{leaf}".removeprefix(".") for leaf, _ in module.named_parameters(recurse=False)]
            if own and frozen.issuperset(own):
                continue
            reset: Any = getattr(module, "reset_parameters", None)
            computed = computed_parameter(module)
            if computed:
                raise UserError(
                    f"model.init=independent: layer '{name or type(module).__name__}' computes its '{computed}' in "
                    "each pass (pruning, weight_norm or spectral_norm), so that reset_parameters() draws nothing; "
                    "use init: common"
                )
            if callable(reset):
                reset()
            elif next(module.parameters(recurse=False), None) is not None:
                raise UserError(
                    f"model.init=independent: layer '{name or type(module).__name__}' has parameters but no "
                    "reset_parameters(); give it one or use init: common"
                )
    return fresh
