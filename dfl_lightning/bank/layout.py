"""The layout of a plain network in one row of the bank: names, shapes, columns, and which columns are shared."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

from dfl_lightning.bank.patterns import TAKES_AWAY, is_chosen
from dfl_lightning.utils.code.frozen import frozen_norms, hash_of
from dfl_lightning.utils.code.module_copies import pruning_masks
from dfl_lightning.utils.errors import UserError, nearest
from dfl_lightning.utils.plain_tensors import refuse_unusual, unusual


@dataclass(frozen=True)
class Entry:
    """One parameter or buffer of the network and the columns `[start, stop)` it occupies."""

    name: str
    shape: torch.Size
    start: int
    stop: int
    dtype: torch.dtype
    is_buffer: bool
    trainable: bool

    @property
    def module(self) -> str:
        """The dotted name of the module that owns the parameter or buffer."""
        return self.name.rpartition(".")[0]


class Columns:
    """A set of columns as sorted, disjoint ranges; adjacent ranges are merged.

    Examples:
        >>> Columns([(4, 6), (0, 2), (2, 3)]).ranges
        ((0, 3), (4, 6))
    """

    def __init__(self, ranges: Iterable[tuple[int, int]]) -> None:
        merged: list[tuple[int, int]] = []
        for start, stop in sorted(r for r in ranges if r[0] < r[1]):
            if merged and merged[-1][1] >= start:
                merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
            else:
                merged.append((start, stop))
        self.ranges = tuple(merged)

    def __len__(self) -> int:
        return sum(stop - start for start, stop in self.ranges)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Columns) and self.ranges == other.ranges

    def __hash__(self) -> int:
        return hash(self.ranges)

    def blocks(self, width: int) -> Iterator[tuple[int, int]]:
        """Iterate over the columns in ranges of at most `width` columns, for products that must fit into memory."""
        for start, stop in self.ranges:
            for low in range(start, stop, width):
                yield low, min(low + width, stop)

    def common(self, other: Columns) -> Columns:
        """Return the columns that are in both sets.

        Examples:
            >>> Columns([(0, 4), (6, 9)]).common(Columns([(2, 7)])).ranges
            ((2, 4), (6, 7))
        """
        pairs = ((one, two) for one in self.ranges for two in other.ranges)
        return Columns((max(one[0], two[0]), min(one[1], two[1])) for one, two in pairs)

    def holds(self, entry: Entry) -> bool:
        """Return True if the whole entry lies in these columns."""
        return any(start <= entry.start and entry.stop <= stop for start, stop in self.ranges)

    def mask(self, width: int, device: torch.device | str = "cpu") -> Tensor:
        """Convert the columns into a mask, bool [width].

        Args:
            width: length of a row.
            device: device of the mask.
        """
        mask = torch.zeros(width, dtype=torch.bool, device=device)
        for start, stop in self.ranges:
            mask[start:stop] = True
        return mask


@dataclass(frozen=True)
class CommonTensor:
    """One parameter or buffer that is the same for all clients, and has no columns."""

    name: str
    shape: torch.Size
    dtype: torch.dtype
    is_buffer: bool


class Layout:
    """The columns of a row: all trained parameters in the network's order, then all buffers that training may write.

    Frozen parameters (`requires_grad=False`), the buffers of frozen batch norms, and the buffers in `constant` are
    *common*: they have no columns. There is one copy of them for all clients, the *base*.

    Integer buffers (a BatchNorm's `num_batches_tracked`) are stored as floating-point numbers and never shared; masks
    of pruned layers are never shared either. A tied parameter has columns once, under its first name.

    Args:
        network: a plain network. Its names, shapes and dtypes are kept, and the values of buffers that are not in its
            state dict.
        shared: glob patterns over parameter and buffer names, for example `features.*`, or `!*.bn.*` for all but these;
            what they do not choose is personal, see `patterns.is_chosen`.
        constant: names of the buffers that no training pass writes.

    Attributes:
        common: the parameters and buffers without columns.
        base: the values of `common` by name, on the run's device; first those of the network itself.
        shared: the columns that are exchanged.
        shared_parameters: the parameters among them; similarities of models and updates are computed on these.
        shared_buffers: the buffers among them, which are only ever averaged; see `bank.averaging`.
        feature_layers: names of the linear and convolutional layers, and of others with a trained weight matrix, in
            order.

    Raises:
        UserError: the network has no trainable parameter, no trainable parameter is shared, a pattern matches nothing,
            or a tensor has numbers that a row cannot hold.
    """

    def __init__(self, network: nn.Module, shared: Sequence[str] = ("*",), constant: Collection[str] = ()) -> None:
        refuse_unusual(network)
        entries, at = [], 0
        everything: list[tuple[str, Tensor, bool]] = [(name, p, False) for name, p in network.named_parameters()]
        everything += [(name, b, True) for name, b in network.named_buffers()]
        same = {*constant, *(name for name, p in network.named_parameters() if not p.requires_grad)}
        layers = dict(network.named_modules())
        for norm in frozen_norms(network):
            same.update(f"{norm}.{leaf}".removeprefix(".") for leaf, _ in layers[norm].named_buffers())
        tensors = [one for one in everything if one[0] not in same]
        for name, tensor, is_buffer in tensors:
            entries.append(Entry(name, tensor.shape, at, at + tensor.numel(), tensor.dtype, is_buffer, not is_buffer))
            at += tensor.numel()
        self.entries = tuple(entries)
        self.common = tuple(CommonTensor(name, t.shape, t.dtype, b) for name, t, b in everything if name in same)
        self.base = {name: t.detach() for name, t, _ in everything if name in same}
        self.base_hash = ""
        self.width = at
        self.num_parameters = sum(e.stop - e.start for e in entries if not e.is_buffer)
        if not any(e.trainable for e in entries):
            missing = "trainable parameters" if any(not c.is_buffer for c in self.common) else "parameters"
            raise UserError(
                f"model.network {type(network).__name__} has no {missing}; clients would have nothing to learn"
            )
        for name, tensor, is_buffer in tensors:  # Common ones need not fit a row.
            if is_buffer and not _fits_float32(tensor):
                raise UserError(
                    f"model.network {type(network).__name__}: buffer '{name}' holds infinity, NaN or integers beyond "
                    "2^24, which cannot be mixed; make it a plain attribute, or a bool mask"
                )
        first = {id(tensor): entry for (_, tensor, _), entry in zip(tensors, entries, strict=True)}
        first_name = {id(tensor): name for name, tensor, _ in everything}
        self._aliases = {
            name: first_name[id(tensor)]
            for named in (
                network.named_parameters(remove_duplicate=False),
                network.named_buffers(remove_duplicate=False),
            )
            for name, tensor in named
        }
        in_files = network.state_dict().keys()
        self._unsaved = {
            name: tensor.detach().clone()
            for name, tensor, is_buffer in everything
            if is_buffer and name not in in_files
        }
        self._modules = {
            name: [first[id(p)] for p in module.parameters(recurse=False) if id(p) in first]
            for name, module in network.named_modules()
            if next(module.parameters(recurse=False), None) is not None
        }
        self.feature_layers = [name for name, module in network.named_modules() if _mixes_its_inputs(module)]
        names = [e.name for e in entries]
        for pattern in shared:
            if not any(fnmatchcase(name, pattern.removeprefix(TAKES_AWAY)) for name in names):
                if any(fnmatchcase(c.name, pattern.removeprefix(TAKES_AWAY)) for c in self.common):
                    raise UserError(
                        f"model.shared: '{pattern}' matches frozen parameters of {type(network).__name__} only, which "
                        "are the same for all clients and never sent; drop the pattern, or do not freeze them"
                    )
                raise UserError(
                    f"model.shared: no parameter of {type(network).__name__} matches '{pattern}'"
                    f"{nearest(pattern, names)} "
                    f"(its parameters: {', '.join(names[:12])}{', …' if len(names) > 12 else ''})"
                )
        masks = pruning_masks(network)
        self.shared = self._columns(
            e for e in entries if e.dtype.is_floating_point and e.name not in masks and is_chosen(e.name, shared)
        )
        if not any(e.trainable and self.is_shared(e) for e in entries):
            raise UserError(
                f"model.shared={list(shared)} shares no trainable parameter; "
                "for clients that train alone use --selection.k 0"
            )
        self.personal = self._columns(e for e in entries if not self.is_shared(e))
        self.parameters = self._columns(e for e in entries if not e.is_buffer)
        self.buffers = self._columns(e for e in entries if e.is_buffer)
        self.shared_parameters = self.shared.common(self.parameters)
        self.shared_buffers = self.shared.common(self.buffers)
        self.all = Columns([(0, at)])

    def _columns(self, entries: Iterable[Entry]) -> Columns:
        return Columns((e.start, e.stop) for e in entries)

    @property
    def has_personal_parameters(self) -> bool:
        """True if some trainable parameter is never exchanged."""
        return any(e.trainable and not self.is_shared(e) for e in self.entries)

    def is_shared(self, entry: Entry) -> bool:
        """Return True if the entry is shared; entries are shared as a whole."""
        return self.shared.holds(entry)

    def without(self, entries: Collection[Entry]) -> Columns:
        """Return all columns but those of some entries."""
        return self._columns(e for e in self.entries if e not in entries)

    def module_columns(self, name: str) -> Columns:
        """Return the columns of the module's own parameters (weight, bias), including tied ones.

        Raises:
            UserError: no module of this name has parameters of its own.
        """
        if name not in self._modules:
            raise UserError(
                f"the network has no layer '{name}' with parameters{nearest(name, self._modules)} "
                f"(layers: {', '.join(name for name, own in self._modules.items() if own)})"
            )
        if not self._modules[name]:
            trained = ", ".join(layer for layer, own in self._modules.items() if own)
            raise UserError(
                f"the layer '{name}' is frozen, so that it is the same for all clients; name a trained one ({trained})"
            )
        return self._columns(self._modules[name])

    def last_feature_layer(self) -> str:
        """Return the name of the last feature layer but one: the featurizer's output layer (AFIND+, section 3).

        Feature layers have a weight matrix or kernels. Norm layers and learned scales do not count: their one or two
        numbers per channel hardly distinguish two clients.

        Raises:
            UserError: the network has fewer than two such layers.
        """
        if len(self.feature_layers) < 2:
            raise UserError(
                "a network with a single linear or convolutional layer has no featurizer; "
                "name a layer with --selection.proxy_layer"
            )
        return self.feature_layers[-2]

    # --- the base -----------------------------------------------------------------------------------------------------
    def load_base(
        self, state: Mapping[str, Tensor], dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
    ) -> None:
        """Set the values of the base, and compute their hash.

        Args:
            state: values by name, those of a file or of a network; those of a network are not copied if type and device
                fit. A buffer that state dicts do not contain keeps its value if it is missing.
            dtype: type of floating-point numbers.
            device: the run's device.

        Raises:
            UserError: a name is missing, a shape differs, or the network cannot represent a number.
        """
        values = {**{name: value for name, value in self._unsaved.items() if name in self.base}, **state}
        base = {}
        for entry in self.common:
            kind = dtype if entry.dtype.is_floating_point else entry.dtype
            base[entry.name] = self._checked(entry, values, kind).to(kind)
        self.base_hash = hash_of(base) if base else ""
        self.base = {name: value.to(device) for name, value in base.items()}

    @property
    def base_bytes(self) -> int:
        """Bytes of the base."""
        return sum(value.numel() * value.element_size() for value in self.base.values())

    def refuse_thawed(self, network: nn.Module) -> None:
        """Raise if a parameter of the network is frozen or trained that was not when the layout was made.

        Raises:
            UserError: names the parameter and the remedy.
        """
        frozen = {c.name for c in self.common if not c.is_buffer}
        for name, parameter in network.named_parameters():
            if parameter.requires_grad == (name in frozen):
                before, now = ("frozen", "trained") if name in frozen else ("trained", "frozen")
                raise UserError(
                    f"model.network {type(network).__name__}: '{name}' was {before} when the run was set up, and is "
                    f"{now} now; set requires_grad before the run, or begin another one with a new DFLModule"
                )

    def _checked(self, e: Entry | CommonTensor, values: Mapping[str, Tensor], dtype: torch.dtype) -> Tensor:
        """Return the value of an entry, whose numbers `dtype` and the network can represent."""
        if e.name not in values:
            raise UserError(f"the file has no '{e.name}'; it holds another network's parameters")
        value = values[e.name]
        if value.shape != e.shape:
            raise UserError(
                f"'{e.name}' has shape {tuple(value.shape)} in the file and {tuple(e.shape)} in the network"
            )
        if why := unusual(value) or _lost(value, e.dtype, dtype):
            raise UserError(
                f"'{e.name}' in the file is {why}; save it as {_word(e.dtype)} numbers, as the network has it"
            )
        return value.detach()

    # --- rows and state dicts -----------------------------------------------------------------------------------------
    def flatten(self, network: nn.Module, dtype: torch.dtype = torch.float32) -> Tensor:
        """Concatenate the parameters and buffers of a network with this layout into one row, [width]."""
        tensors = {**dict(network.named_parameters()), **dict(network.named_buffers())}
        return torch.cat([tensors[e.name].detach().reshape(-1).to(dtype) for e in self.entries])

    def state_dict(self, row: Tensor) -> dict[str, Tensor]:
        """Convert a row into the plain network's state dict, with the network's own names and dtypes."""
        values = {e.name: _typed(row[e.start : e.stop].reshape(e.shape), e.dtype) for e in self.entries}
        values |= {e.name: self.base[e.name].to(row.device, e.dtype) for e in self.common}
        return {name: values[own].clone() for name, own in self._aliases.items() if own not in self._unsaved}

    def row(self, state: Mapping[str, Tensor], dtype: torch.dtype = torch.float32) -> Tensor:
        """Convert a state dict into a row, [width], of the given dtype; names that the network lacks are ignored.

        Raises:
            UserError: a name is missing, a shape differs, or the row or the network cannot represent a number.
        """
        values = {**self._unsaved, **state}
        return torch.cat([self._checked(e, values, dtype).reshape(-1).to(dtype) for e in self.entries])

    def fingerprint(self) -> dict[str, Any]:
        """Describe the layout for files: names, shapes, dtypes and shared columns.

        Two networks with equal fingerprints have exchangeable rows, and a row can be turned into a state dict without
        the network. `names` maps the names of the network's state dict to those of `parameters`: tied parameters appear
        twice. `base` has the names, shapes and types of common tensors, and a hash of their values.
        """
        about: dict[str, Any] = {
            "parameters": {e.name: [list(e.shape), _word(e.dtype)] for e in self.entries},
            "shared": [list(r) for r in self.shared.ranges],
            "names": {name: own for name, own in self._aliases.items() if own not in self._unsaved},
        }
        if self.common:
            tensors = {c.name: [list(c.shape), _word(c.dtype)] for c in self.common}
            about["base"] = {"tensors": tensors, "hash": self.base_hash}
        return about


def _typed(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor.to(dtype) if dtype.is_floating_point else tensor.round().to(dtype)


def _lost(value: Tensor, network: torch.dtype, row: torch.dtype) -> str:
    """Describe why the network or a row cannot represent the values of a file; empty if it can, up to rounding."""
    if not value.is_floating_point() and not torch.equal(value.to(row).to(value.dtype), value):
        return f"{_word(value.dtype)} with numbers that {_word(row)} does not have"
    if not network.is_floating_point and not torch.equal(value.to(network).to(value.dtype), value):
        return f"{_word(value.dtype)} with numbers that {_word(network)} does not have"
    return ""


def _word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _mixes_its_inputs(layer: nn.Module) -> bool:
    """Return True if the layer itself, not a submodule, has a trained weight matrix or kernels.

    A scale for each channel is neither.
    """
    weights = [p for p in layer.parameters(recurse=False) if p.dim() >= 2 and p.requires_grad]
    if isinstance(layer, nn.Linear | nn.modules.conv._ConvNd):
        return bool(weights)
    if isinstance(layer, nn.LayerNorm | nn.RMSNorm):  # weights [c, h, w] scale each entry of an image by itself
        return False
    return any(sum(size > 1 for size in p.shape) >= 2 for p in weights)  # [1, c, 1, 1] is a scale


def _fits_float32(buffer: Tensor) -> bool:
    """Return True if a row of float32 can hold the values: finite numbers, or integers of at most 2^24."""
    if buffer.is_floating_point():
        return bool(buffer.isfinite().all())
    return bool((buffer.double().abs() <= 2**24).all())
