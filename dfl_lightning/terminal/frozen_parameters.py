"""What parameters that are not trained cost, and the patterns that leave them out of messages."""

from __future__ import annotations

import json
from collections.abc import Iterable
from fnmatch import fnmatchcase

from dfl_lightning.bank.layout import Layout
from dfl_lightning.utils.memory import size

BYTES = 4
"""Of a number in a message."""


def frozen_remark(layout: Layout) -> str | None:
    """A sentence about frozen parameters that clients send all the same; None where there are none.

    Args:
        layout: of the run's network.
    """
    shared = [e for e in layout.entries if layout.is_shared(e)]
    frozen = [e for e in shared if not e.is_buffer and not e.trainable]
    if not frozen:
        return None
    numbers = sum(e.stop - e.start for e in frozen)
    still = [e.name for e in shared if e not in frozen]
    others = [e.name for e in layout.entries if e.name not in still and e.dtype.is_floating_point]
    patterns = shared_without(still, others)
    return (
        f"{numbers:,} of the {layout.num_parameters:,} parameters are frozen (requires_grad=False), but every client "
        f"stores and sends them: {size(BYTES * numbers)} of the {size(BYTES * len(layout.shared))} of each message; "
        f"--model.shared '{json.dumps(patterns)}' sends the others only"
    )


def shared_without(names: Iterable[str], excluded: Iterable[str]) -> list[str]:
    """A few glob patterns that match all names but the excluded ones.

    Of equally good ones layers (`head.*`) come before endings (`*.running_mean`), endings within a layer, and names.

    Args:
        names: of parameters and buffers.
        excluded: names that no pattern may match; those among `names` do not count there.

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
    found, left = [], set(wanted)
    while left:  # the pattern that matches most of what is left; the first one of equals
        best = max(matched, key=lambda pattern: len(matched[pattern] & left))
        found.append(best)
        left -= matched[best]
    return found
