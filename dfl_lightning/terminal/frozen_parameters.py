"""Words of the banner about frozen parameters, and about large networks without any."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from dfl_lightning.bank.layout import Layout
from dfl_lightning.utils.code.frozen import frozen_norms
from dfl_lightning.utils.memory import size

BYTES = 4
"""Size of a number in a message."""

LARGE = 20_000_000
"""Number of trained parameters from which on the cost of a round is worth a note."""


def describe_base(layout: Layout) -> str:
    """Describe the parameters and buffers that all clients share; return an empty string without any.

    Args:
        layout: the columns of a row, and what has none.
    """
    frozen = sum(c.shape.numel() for c in layout.common if not c.is_buffer)
    constant = sum(c.shape.numel() for c in layout.common if c.is_buffer)
    parts = [(frozen, "frozen parameters"), (constant, "numbers in constant buffers")]
    listed = " and ".join(f"{count:,} {what}" for count, what in parts if count)
    return f"{listed}, {size(layout.base_bytes)}, one copy for all clients, in no message" if listed else ""


def frozen_remarks(network: nn.Module, layout: Layout, clients: int) -> Iterator[str]:
    """Yield notes about frozen batch norms, and about what a round costs if nothing of a large network is frozen.

    Args:
        network: the network for one client.
        layout: the columns of a row, and what has none.
        clients: number of clients.
    """
    norms = frozen_norms(network)
    if norms:
        names = ", ".join(norms[:3]) + ", …" * (len(norms) > 3)
        yield (
            f"batch norms with frozen parameters ({names}) use their running statistics in training, too, and keep "
            "them; plain torch changes them unless eval() is called on these layers"
        )
    if layout.num_parameters >= LARGE and all(c.is_buffer for c in layout.common):
        message = BYTES * len(layout.shared)
        yield (
            f"all {layout.num_parameters:,} parameters are trained: a message takes {size(message)}, so that a round "
            f"sends {size(clients * message)} for each neighbour that the {clients} clients listen to; if only a part "
            "is to be trained, freeze the others (requires_grad_(False)), or train adapters (models.LoRA)"
        )
