"""First parameters from a file: a state dict, also one level down as in a checkpoint, and under a prefix."""

from __future__ import annotations

import pickle
import warnings
import zipfile
from collections import Counter
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from dfl_lightning.utils.errors import UserError, nearest, shortened
from dfl_lightning.utils.storage.checksums import Damaged, check_archive

__all__ = ["load_parameters", "read_start"]

_KEYS = ("state_dict", "model_state_dict", "model", "net", "params")
"""Entries of a checkpoint that hold a state dict, in the order in which they are looked for."""

_COMPILED = "_orig_mod."  # torch.compile writes it before the names of what it wraps, at any depth


def read_start(file: str, own: Mapping[str, Tensor], skip: Sequence[str] = ()) -> tuple[dict[str, Tensor], list[str]]:
    """Read the parameters and buffers of a network from a file.

    A prefix that all of them have in the file, such as `module.` or `model.`, is taken off.

    Args:
        file: a `.safetensors`, `.pt`, `.pth` or `.ckpt` file; see `load_parameters`.
        own: the network's own parameters and buffers, by name.
        skip: glob patterns of names that keep the network's own values.

    Returns:
        A value for each name, and remarks on how they were found.

    Raises:
        UserError: the file cannot be read, holds another network's parameters, or a pattern matches nothing.
    """
    state, key = _load(file)
    where = f"model.init={file}"
    for pattern in skip:
        if not any(fnmatchcase(name, pattern) for name in own):
            has = shortened(", ".join(own), 300)
            raise UserError(
                f"model.init_skip: no parameter matches '{pattern}'{nearest(pattern, own)} (parameters: {has})"
            )
    skipped = [name for name in own if any(fnmatchcase(name, pattern) for pattern in skip)]
    wanted = [name for name in own if name not in skipped]
    if not wanted:
        raise UserError(f"model.init_skip leaves nothing to read from {file}; set model.init: common instead")
    values, prefix = _without_prefix(state, wanted, where)
    _refuse_others(values, {name: own[name] for name in wanted}, where)
    how = [f"read from its '{key}'"] * bool(key) + [f"with '{prefix}' taken off its names"] * bool(prefix)
    remarks = [f"{where}: {', '.join(how)}"] if how else []
    if skipped:
        remarks.append(f"model.init_skip: not from the file, but drawn anew: {shortened(', '.join(skipped), 200)}")
    return {**{name: values[name] for name in wanted}, **{name: own[name] for name in skipped}}, remarks


def load_parameters(file: str) -> dict[str, Tensor]:
    """Load a state dict from a `.safetensors`, `.pt`, `.pth` or `.ckpt` file, without running code of the file.

    A checkpoint of Lightning, or another dictionary, may hold the state dict one level down.
    A file of `torch.save` is compared with its checksums; a `.safetensors` file has none.

    Args:
        file: the path.

    Raises:
        UserError: the file does not exist, is damaged, or holds no state dict.
    """
    return _load(file)[0]


def _load(file: str) -> tuple[dict[str, Tensor], str]:
    """Load a state dict, and return it with the key that it has in the file; empty if it is the whole file."""
    path = Path(file)
    if not path.is_file():
        raise UserError(f"model.init={file}: no such file; init is common, independent or a file with a state dict")
    try:
        if path.suffix != ".safetensors" and zipfile.is_zipfile(path):
            check_archive(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of unusual files before it fails on them
            content = (
                load_file(path)
                if path.suffix == ".safetensors"
                else torch.load(path, weights_only=True, map_location="cpu")
            )
    except Damaged as error:
        raise UserError(f"model.init={file}: damaged ({error}); use another copy") from None
    except pickle.UnpicklingError:
        if not zipfile.is_zipfile(path):  # one of these has the right checksums here, so that it is not damaged
            raise UserError(f"model.init={file}: not a readable state dict (UnpicklingError)") from None
        raise UserError(
            f"model.init={file}: it holds Python objects besides the parameters, which could run code and are not "
            f"loaded; if you trust it, save its parameters alone: torch.save(torch.load('{path.name}', "
            "weights_only=False)['state_dict'], 'start.pt')"
        ) from None
    except Exception as error:  # the readers raise many types of errors on a broken file
        raise UserError(f"model.init={file}: not a readable state dict ({type(error).__name__})") from None
    for key in ("", *_KEYS):
        state: Any = content.get(key) if key and isinstance(content, dict) else content
        if _is_state_dict(state) and (state or not key):
            return dict(state), key
    raise UserError(
        f"model.init={file}: not a state dict of tensors, nor a dictionary that has one as {', '.join(_KEYS[:3])}; "
        "save network.state_dict()"
    )


def _is_state_dict(thing: Any) -> bool:
    return isinstance(thing, Mapping) and all(
        isinstance(name, str) and isinstance(value, Tensor) for name, value in thing.items()
    )


def _without_prefix(state: dict[str, Tensor], wanted: Sequence[str], where: str) -> tuple[dict[str, Tensor], str]:
    """Take the prefix off the names of a state dict that most of the wanted names have there; return both."""
    if all(name in state for name in wanted):
        return state, ""
    plain = {name.replace(_COMPILED, ""): (name, value) for name, value in state.items()}
    compiled = _COMPILED if len(plain) == len(state) and plain.keys() != state.keys() else ""
    if not compiled:
        plain = {name: (name, value) for name, value in state.items()}
    names, counts = set(wanted), Counter[str]()
    for name in plain:
        parts = name.split(".")
        for depth in range(len(parts)):
            if ".".join(parts[depth:]) in names:
                counts["".join(f"{part}." for part in parts[:depth])] += 1
    whole = [prefix for prefix, count in counts.items() if count == len(wanted)]
    if len(whole) > 1 and "" not in whole:
        raise UserError(
            f"{where}: the parameters are there as {' and as '.join(f'{prefix}{wanted[0]}' for prefix in whole[:3])}; "
            "save those of one network"
        )
    prefix = "" if "" in whole or not counts else max(counts, key=lambda each: counts[each])
    found = {name.removeprefix(prefix): entry for name, entry in plain.items() if name.startswith(prefix)}
    taken_off = next((before.removesuffix(name) for name, (before, _) in found.items() if name in names), "")
    return {name: value for name, (_, value) in found.items()}, taken_off


def _refuse_others(values: Mapping[str, Tensor], own: Mapping[str, Tensor], where: str) -> None:
    """Raise if a parameter is missing or has another shape; if only some layers do, say how they can start anew."""
    others = [name for name, value in own.items() if name not in values or values[name].shape != value.shape]
    if not others:
        return
    first = others[0]
    if first in values:
        shapes = f"{tuple(values[first].shape)} in the file and {tuple(own[first].shape)} in the network"
        what = f"'{first}' has shape {shapes}"
    else:
        what = f"the file has no '{first}'"
    if len(others) * 2 > len(own):
        what += "; it holds another network's parameters" if first not in values else ""
        raise UserError(f"{where}: {what}; give a file of this network")
    layers = dict.fromkeys(f"{name.rpartition('.')[0]}.*" if "." in name else name for name in others)
    raise UserError(f"{where}: {what}; for layers that start anew set model.init_skip: {list(layers)}")
