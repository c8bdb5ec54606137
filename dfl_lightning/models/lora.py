"""Low-rank adapters (LoRA) of any network, whose other parameters are frozen."""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any, Self

from torch import nn

from dfl_lightning.models.network import Network
from dfl_lightning.utils.code.adapters import A, B, adapters_of, add_adapter, size_of
from dfl_lightning.utils.errors import UserError, nearest

__all__ = ["LoRA"]

FACTORS = {"both": (A, B), "A": (A,), "B": (B,)}
"""The factors that are trained, by the value of the option `factors`."""


class LoRA(Network):
    """A network whose parameters are frozen, with adapters in some of its linear layers (arXiv 2106.09685).

    The adapter of a layer W adds `alpha / rank * B A x`. A, [rank, inputs], is drawn as a linear layer draws its
    weight; B, [outputs, rank], begins at 0, so that training begins with the network as it is. Layers are changed in
    place and keep their names: `block.query` has `weight`, `bias`, `lora_A` and `lora_B`. A shipped network keeps its
    parts `features` and `head`; another one is the part `network`. Frozen parameters exist once for all clients, and
    are in no message.

    Args:
        base: the network to adapt; it is changed unless it is a shipped one that a run builds for its data.
        rank: number of rows of A, the same for all clients.
        alpha: scale of the adapters; default: the rank, so that they are not scaled.
        targets: patterns of the names of layers that get an adapter, for example `*.query`.
        trained: patterns of the names of further parameters that are trained, for example `head.*`.
        factors: `both`, `A` or `B`: the factors that are trained. A factor that is not trained is the same for all
            clients.
        input_shape: shape of an input of a shipped network; by default taken from the data.
        num_classes: number of outputs of a shipped network; by default taken from the data.

    Raises:
        UserError: no layer matches a target, a layer is not linear or smaller than the rank, or an option is wrong.

    Examples:
        >>> body = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
        >>> network = LoRA(body, rank=4, targets=["network.0"])
        >>> {name: tuple(p.shape) for name, p in network.named_parameters() if p.requires_grad}
        {'network.0.lora_A': (4, 64), 'network.0.lora_B': (32, 4)}
    """

    def __init__(
        self,
        base: nn.Module,
        rank: int = 8,
        alpha: float | None = None,
        targets: Sequence[str] = ("*",),
        trained: Sequence[str] = (),
        factors: str = "both",
        *,
        input_shape: tuple[int, ...] | None = None,
        num_classes: int | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(base, nn.Module):
            raise UserError(f"LoRA: base is {base!r}, not a torch.nn.Module; give the network to adapt")
        if isinstance(rank, Sequence | dict):
            raise UserError(f"LoRA: rank={rank}; all clients have adapters of one rank, since their rows are mixed")
        if isinstance(rank, bool) or not isinstance(rank, int) or rank < 1:
            raise UserError(f"LoRA: rank={rank}; it is a whole number of 1 or more")
        if alpha is not None and not (math.isfinite(alpha) and alpha > 0):
            raise UserError(f"LoRA: alpha={alpha}; it is a number above 0")
        if factors not in FACTORS:
            raise UserError(f"LoRA: factors={factors}; it is both, A or B")
        self.rank, self.factors = rank, factors
        self.alpha = float(rank if alpha is None else alpha)
        self.targets = [targets] if isinstance(targets, str) else list(targets)
        self.trained = [trained] if isinstance(trained, str) else list(trained)
        self._plain: list[Network] = []  # in a list, since a shipped network is no part of this one before it is built
        if isinstance(base, Network) and base.num_classes is None:
            self._plain = [base]
            self.build_if_known(input_shape, num_classes)
        elif isinstance(base, Network):
            self.input_shape, self.num_classes = base.input_shape, base.num_classes
            self.features, self.head = base.features, base.head
            self._adapt()
        else:
            self.network = base
            if not _takes_one(base):
                self.__class__ = _OfMany
            self._adapt()

    def layers(self, input_shape: tuple[int, ...], num_classes: int) -> tuple[nn.Module, nn.Module]:
        """Build the shipped network, and return its two parts."""
        built = copy.deepcopy(self._plain[0]).build(input_shape, num_classes)
        return built.features, built.head

    def read_categories(self, categories: tuple[int, ...]) -> None:
        """Pass the categorical columns of the data to the network."""
        for plain in self._plain:
            plain.read_categories(categories)

    def build(self, input_shape: Sequence[int], num_classes: int) -> Self:
        """Build the network and its adapters, with parameters drawn from torch's global generator; see `Network`."""
        new = self.num_classes is None
        if self._plain and self._plain[0].takes_parts:  # It has no parts `features` and `head`.
            if new:
                self.network = copy.deepcopy(self._plain[0]).build(input_shape, num_classes)
                self.input_shape, self.num_classes = self.network.input_shape, self.network.num_classes
                self.__class__ = _OfMany  # type: ignore[assignment]
        else:
            super().build(input_shape, num_classes)
        if new:
            self._adapt()
        return self

    def draw(self, input_shape: Sequence[int], num_classes: int, seed: int) -> Self:
        """Build a shipped network with parameters drawn from the seed of a run; leave others as they are."""
        fixed = hasattr(self, "network") and not self._plain
        return self if fixed else super().draw(input_shape, num_classes, seed)

    @property
    def takes_parts(self) -> bool:
        """True if the adapted network takes inputs of several parts."""
        return self._plain[0].takes_parts if self._plain else hasattr(self, "network")

    def forward(self, x: Any) -> Any:
        """Compute the outputs of the adapted network."""
        return self.network(x) if hasattr(self, "network") else super().forward(x)

    # --- adapters -----------------------------------------------------------------------------------------------------
    def _adapt(self) -> None:
        """Freeze the network, and give the targets their adapters."""
        self.requires_grad_(False)
        within = {
            f"{name}.{inner}".removeprefix(".")
            for name, layer in self.named_modules()
            if isinstance(layer, nn.MultiheadAttention)
            for inner, _ in layer.named_modules()
            if inner
        }
        layers = {name: layer for name, layer in self.named_modules() if name}
        for pattern in self.targets:
            named = [name for name in layers if fnmatchcase(name, pattern)]
            if not named:
                linear = [name for name, layer in layers.items() if size_of(layer)]
                raise UserError(
                    f"LoRA: no layer matches targets '{pattern}'{nearest(pattern, linear)} (linear layers: "
                    f"{', '.join(linear[:12])}{', …' if len(linear) > 12 else ''})"
                )
            linear = [name for name in named if size_of(layers[name])]
            exact = not any(character in pattern for character in "*?[")
            for name in named if exact or not linear else linear:  # a pattern may match containers and norms, too
                if name in within:
                    raise UserError(
                        f"LoRA: the layer '{name}' belongs to an nn.MultiheadAttention, which uses its weight without "
                        "calling it, so that an adapter would do nothing; name other layers in targets"
                    )
                if name not in adapters_of(self):
                    add_adapter(layers[name], name, self.rank, self.alpha)
        for layer in adapters_of(self).values():
            for leaf in (A, B):
                getattr(layer, leaf).requires_grad_(leaf in FACTORS[self.factors])
        parameters = dict(self.named_parameters())
        for pattern in self.trained:
            matched = [name for name in parameters if fnmatchcase(name, pattern)]
            if not matched:
                raise UserError(f"LoRA: no parameter matches trained '{pattern}'{nearest(pattern, parameters)}")
            for name in matched:
                parameters[name].requires_grad_(True)


class _OfMany(LoRA):
    """A network with adapters whose inputs have several parts; torch.fx cannot trace its forward pass."""

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Compute the outputs of the adapted network."""
        return self.network(*inputs, **named)


_OfMany.__name__ = LoRA.__name__


def _takes_one(network: nn.Module) -> bool:
    """Return True if the forward pass of the network takes one input, and further ones have defaults."""
    parameters = inspect.signature(network.forward).parameters.values()
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    required = [p for p in parameters if p.default is p.empty]
    return len(required) == 1 and required[0].kind in positional
