"""How clients' models start: a fresh draw each, or parameters from a file."""

from __future__ import annotations

import warnings
import zipfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from dfl_lightning.utils.code.module_copies import computed_parameter, copy_of
from dfl_lightning.utils.errors import UserError
from dfl_lightning.utils.randomness.random_streams import stream_seed
from dfl_lightning.utils.storage.checksums import Damaged, check_archive


def fresh_parameters(network: nn.Module, seed: int, node: int) -> nn.Module:
    """A copy of the network with every layer drawn anew by its own `reset_parameters`.

    Args:
        network: a built network.
        seed: the run's seed.
        node: whose draw it is.

    Raises:
        UserError: a layer has parameters of its own and no `reset_parameters`, or one that cannot reach them.
    """
    fresh = copy_of(network)
    with torch.random.fork_rng(devices=[]):
        # torch.manual_seed would also seed every GPU, and nothing would set those back.
        torch.default_generator.manual_seed(stream_seed(seed, "initial parameters", node))
        for name, module in fresh.named_modules():
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


def load_parameters(file: str) -> dict[str, Tensor]:
    """A state dict from a `.safetensors` or `.pt`/`.pth` file; runs no code of the file.

    What `torch.save` wrote is compared with its checksums; a `.safetensors` file has none.

    Raises:
        UserError: no such file, or not a state dict.
    """
    path = Path(file)
    if not path.is_file():
        raise UserError(f"model.init={file}: no such file; init is common, independent or a file with a state dict")
    try:
        if path.suffix != ".safetensors" and zipfile.is_zipfile(path):
            check_archive(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch remarks on odd files before it fails on them
            state = (
                load_file(path)
                if path.suffix == ".safetensors"
                else torch.load(path, weights_only=True, map_location="cpu")
            )
    except Damaged as error:
        raise UserError(f"model.init={file}: damaged ({error}); use another copy") from None
    except Exception as error:  # a broken file makes the readers fail in a dozen ways
        raise UserError(f"model.init={file}: not a readable state dict ({type(error).__name__})") from None
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise UserError(f"model.init={file}: not a state dict of tensors")
    return state
