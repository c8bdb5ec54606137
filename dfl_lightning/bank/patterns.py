"""Glob patterns that say which parameters and buffers clients exchange."""

from __future__ import annotations

import glob
from collections.abc import Sequence
from fnmatch import fnmatchcase

from torch import nn

from dfl_lightning.utils.errors import UserError

TAKES_AWAY = "!"
"""First character of a pattern that takes away what it matches."""


def is_chosen(name: str, patterns: Sequence[str]) -> bool:
    """Return True if patterns choose a name: one of them matches it, and none that begins with `!` does.

    If all patterns begin with `!`, they choose all other names.

    Args:
        name: name of a parameter or buffer.
        patterns: glob patterns.

    Examples:
        >>> is_chosen("body.weight", ["body.*"]), is_chosen("body.bn.weight", ["body.*", "!*.bn.*"])
        (True, False)
        >>> is_chosen("head.weight", ["!*.bn.*"])
        True
    """
    away = [pattern.removeprefix(TAKES_AWAY) for pattern in patterns if pattern.startswith(TAKES_AWAY)]
    if any(fnmatchcase(name, pattern) for pattern in away):
        return False
    return len(away) == len(patterns) or any(
        fnmatchcase(name, pattern) for pattern in patterns if not pattern.startswith(TAKES_AWAY)
    )


def without_norms(network: nn.Module, patterns: Sequence[str]) -> list[str]:
    """Add patterns that take away all numbers of the normalisation layers: FedBN (Li et al., 2021).

    These are the layers of torch.nn, layers derived from them, and others whose class is called a norm and whose
    parameters are vectors.

    Args:
        network: the network.
        patterns: glob patterns of what clients exchange.

    Raises:
        UserError: the network has no such layer with parameters or buffers.

    Examples:
        >>> without_norms(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), ["*"])
        ['*', '!1.*']
    """
    norms = [name for name, layer in network.named_modules() if _is_norm(layer) and _has_columns(layer)]
    if not norms:
        raise UserError(
            f"model.personal: norms, but {type(network).__name__} has no normalisation layer with numbers; leave "
            "it out, or name what clients keep by patterns, --model.shared '[\"!head.*\"]'"
        )
    return [*patterns, *(f"{TAKES_AWAY}{glob.escape(name)}.*" if name else TAKES_AWAY + "*" for name in norms)]


def _has_columns(layer: nn.Module) -> bool:
    """Return True if a layer has numbers of each client's own: frozen ones are the same for all clients."""
    parameters = list(layer.parameters())
    return any(p.requires_grad for p in parameters) or (not parameters and bool(layer.state_dict()))


def _is_norm(layer: nn.Module) -> bool:
    if isinstance(layer, _NORMS):
        return True
    own = list(layer.parameters(recurse=False))
    return "norm" in type(layer).__name__.lower() and bool(own) and all(p.dim() == 1 for p in own)


_NORMS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)
