"""The cost of parameters that are not trained, and glob patterns that leave them out of messages."""

from __future__ import annotations

import json
from collections.abc import Iterable
from fnmatch import fnmatchcase

from dfl_lightning.bank.layout import Layout
from dfl_lightning.utils.memory import size

BYTES = 4
"""Size of a number in a message."""


def frozen_remark(layout: Layout) -> str | None:
    """Describe the frozen parameters that clients still send, and the option that avoids it; None without any."""
    shared = [e for e in layout.entries if layout.is_shared(e)]
    frozen = [e for e in shared if not e.is_buffer and not e.trainable]
    if not frozen:
        return None
    numbers = sum(e.stop - e.start for e in frozen)
    trained = [e.name for e in shared if e not in frozen]
    excluded = [e.name for e in layout.entries if e.name not in trained and e.dtype.is_floating_point]
    patterns = shared_without(trained, excluded)
    return (
        f"{numbers:,} of the {layout.num_parameters:,} parameters are frozen (requires_grad=False), but every client "
        f"stores and sends them: {size(BYTES * numbers)} of the {size(BYTES * len(layout.shared))} of each message; "
        f"--model.shared '{json.dumps(patterns)}' sends the others only"
    )


def shared_without(names: Iterable[str], excluded: Iterable[str]) -> list[str]:
    """Return a few glob patterns that match all names but the excluded ones.

    The choice is greedy: the next pattern is the one that matches most of the remaining names. Among equals, layers
    (`head.*`) come before endings (`*.running_mean`), endings within a layer, and whole names.

    Args:
        names: names of parameters and buffers.
        excluded: names that no pattern may match; they are also taken out of `names`.

    Examples:
        >>> shared_without(["body.weight", "body.bias", "head.weight", "head.bias"], {"body.weight", "body.bias"})
        ['head.*']
        >>> shared_without(["a.weight", "a.bias", "b.weight", "b.bias"], {"a.weight", "b.weight"})
        ['*.bias']
    """
    out = set(excluded)
    wanted = [name for name in names if name not in out]
    parts = [name.split(".") for name in wanted]
    layers = [".".join(part[:depth]) + ".*" for part in parts for depth in range(1, len(part))]
    endings = [f"*.{part[-1]}" for part in parts if len(part) > 1]
    within = [f"{'.'.join(part[:depth])}.*.{part[-1]}" for part in parts for depth in range(1, len(part) - 1)]
    matched = {
        pattern: {name for name in wanted if fnmatchcase(name, pattern)}
        for pattern in dict.fromkeys([*layers, *endings, *within, *wanted])
        if not any(fnmatchcase(name, pattern) for name in out)
    }
    chosen, left = [], set(wanted)
    while left:  # `max` returns the first of equals, so the order of the patterns decides
        best = max(matched, key=lambda pattern: len(matched[pattern] & left))
        chosen.append(best)
        left -= matched[best]
    return chosen
