"""The layout of a plain network in one row of the bank: names, shapes, columns, and which columns are shared."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

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


class Layout:
    """The columns of a row: all parameters in the network's order, then all buffers.

    Integer buffers (a BatchNorm's `num_batches_tracked`) are stored as floating-point numbers and never shared; masks
    of pruned layers are never shared either. A tied parameter has columns once, under its first name.

    Args:
        network: a plain network. Its names, shapes and dtypes are kept, and the values of buffers that are not in its
            state dict.
        shared: glob patterns over parameter and buffer names, for example `features.*`; what matches none is personal.

    Attributes:
        shared: the columns that are exchanged.
        shared_parameters: the parameters among them; similarities of models and updates are computed on these.
        shared_buffers: the buffers among them, which are only ever averaged; see `bank.averaging`.
        feature_layers: names of the linear and convolutional layers, and of others with a weight matrix, in order.

    Raises:
        UserError: the network has no trainable parameter, no trainable parameter is shared, a pattern matches nothing,
            or a tensor has numbers that a row cannot hold.
    """

    def __init__(self, network: nn.Module, shared: Sequence[str] = ("*",)) -> None:
        refuse_unusual(network)
        entries, at = [], 0
        tensors: list[tuple[str, Tensor, bool]] = [(name, p, False) for name, p in network.named_parameters()]
        tensors += [(name, b, True) for name, b in network.named_buffers()]
        for name, tensor, is_buffer in tensors:
            trainable = not is_buffer and tensor.requires_grad
            entries.append(Entry(name, tensor.shape, at, at + tensor.numel(), tensor.dtype, is_buffer, trainable))
            at += tensor.numel()
        self.entries = tuple(entries)
        self.width = at
        self.num_parameters = sum(e.stop - e.start for e in entries if not e.is_buffer)
        if not any(e.trainable for e in entries):
            missing = "trainable parameters" if self.num_parameters else "parameters"
            raise UserError(
                f"model.network {type(network).__name__} has no {missing}; clients would have nothing to learn"
            )
        for name, tensor, is_buffer in tensors:
            if (is_buffer or not tensor.is_floating_point()) and not _fits_float32(tensor):
                what = "buffer" if is_buffer else "parameter"
                raise UserError(
                    f"model.network {type(network).__name__}: {what} '{name}' holds infinity, NaN or integers beyond "
                    "2^24, which cannot be mixed; make it a plain attribute, or a bool mask"
                )
        first = {id(tensor): entry for (_, tensor, _), entry in zip(tensors, entries, strict=True)}
        self._aliases = {
            name: first[id(tensor)].name
            for named in (
                network.named_parameters(remove_duplicate=False),
                network.named_buffers(remove_duplicate=False),
            )
            for name, tensor in named
        }
        in_files = network.state_dict().keys()
        self._unsaved = {
            name: tensor.detach().clone() for name, tensor, is_buffer in tensors if is_buffer and name not in in_files
        }
        self._modules = {
            name: [first[id(p)] for p in module.parameters(recurse=False)]
            for name, module in network.named_modules()
            if next(module.parameters(recurse=False), None) is not None
        }
        self.feature_layers = [name for name, module in network.named_modules() if _mixes_its_inputs(module)]
        names = [e.name for e in entries]
        for pattern in shared:
            if not any(fnmatchcase(name, pattern) for name in names):
                raise UserError(
                    f"model.shared: no parameter of {type(network).__name__} matches '{pattern}'"
                    f"{nearest(pattern, names)} "
                    f"(its parameters: {', '.join(names[:12])}{', …' if len(names) > 12 else ''})"
                )
        masks = pruning_masks(network)
        self.shared = self._columns(
            e
            for e in entries
            if e.dtype.is_floating_point and e.name not in masks and any(fnmatchcase(e.name, p) for p in shared)
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

    def module_columns(self, name: str) -> Columns:
        """Return the columns of the module's own parameters (weight, bias), including tied ones.

        Raises:
            UserError: no module of this name has parameters of its own.
        """
        if name not in self._modules:
            raise UserError(
                f"the network has no layer '{name}' with parameters{nearest(name, self._modules)} "
                f"(layers: {', '.join(self._modules)})"
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

    def flatten(self, network: nn.Module, dtype: torch.dtype = torch.float32) -> Tensor:
        """Concatenate the parameters and buffers of a network with this layout into one row, [width]."""
        tensors = {**dict(network.named_parameters()), **dict(network.named_buffers())}
        return torch.cat([tensors[e.name].detach().reshape(-1).to(dtype) for e in self.entries])

    def state_dict(self, row: Tensor) -> dict[str, Tensor]:
        """Convert a row into the plain network's state dict, with the network's own names and dtypes."""
        values = {e.name: _typed(row[e.start : e.stop].reshape(e.shape), e.dtype) for e in self.entries}
        return {name: values[own].clone() for name, own in self._aliases.items() if own not in self._unsaved}

    def row(self, state: Mapping[str, Tensor], dtype: torch.dtype = torch.float32) -> Tensor:
        """Convert a state dict into a row, [width], of the given dtype; names that the network lacks are ignored.

        Raises:
            UserError: a name is missing, a shape differs, or the row or the network cannot represent a number.
        """
        parts = []
        values = {**self._unsaved, **state}
        for e in self.entries:
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
            parts.append(value.detach().reshape(-1).to(dtype))
        return torch.cat(parts)

    def fingerprint(self) -> dict[str, Any]:
        """Describe the layout for files: names, shapes, dtypes and shared columns.

        Two networks with equal fingerprints have exchangeable rows, and a row can be turned into a state dict without
        the network. `names` maps the names of the network's state dict to those of `parameters`: tied parameters appear
        twice.
        """
        return {
            "parameters": {e.name: [list(e.shape), _word(e.dtype)] for e in self.entries},
            "shared": [list(r) for r in self.shared.ranges],
            "names": {name: own for name, own in self._aliases.items() if own not in self._unsaved},
        }


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
    """Return True if the layer itself, not a submodule, has a weight matrix or kernels.

    A scale for each channel is neither.
    """
    weights = [p for p in layer.parameters(recurse=False) if p.dim() >= 2]
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
