"""Initial parameters of clients' models: a separate draw for each client, or parameters from a file."""

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
    """Return a copy of the network in which each layer has drawn new parameters by its `reset_parameters`.

    Args:
        network: a built network.
        seed: seed of the run.
        node: client or server that starts with these parameters; each has its own random stream.

    Raises:
        UserError: a layer has parameters but no `reset_parameters`, or computes a parameter in each pass, so that
            `reset_parameters` would not change it.
    """
    fresh = copy_of(network)
    with torch.random.fork_rng(devices=[]):
        # torch.manual_seed would also seed all GPUs, whose generators fork_rng does not restore here.
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
    """Load a state dict from a `.safetensors` or `.pt`/`.pth` file, without running code of the file.

    A file of `torch.save` is compared with its checksums; a `.safetensors` file has none.

    Raises:
        UserError: the file does not exist, is damaged, or is not a state dict.
    """
    path = Path(file)
    if not path.is_file():
        raise UserError(f"model.init={file}: no such file; init is common, independent or a file with a state dict")
    try:
        if path.suffix != ".safetensors" and zipfile.is_zipfile(path):
            check_archive(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of unusual files before it fails on them
            state = (
                load_file(path)
                if path.suffix == ".safetensors"
                else torch.load(path, weights_only=True, map_location="cpu")
            )
    except Damaged as error:
        raise UserError(f"model.init={file}: damaged ({error}); use another copy") from None
    except Exception as error:  # the readers raise many types of errors on a broken file
        raise UserError(f"model.init={file}: not a readable state dict ({type(error).__name__})") from None
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise UserError(f"model.init={file}: not a state dict of tensors")
    return state
