"""How much memory a run takes, predicted from its shapes."""

from __future__ import annotations

from torch import Tensor

from dfl_lightning.callbacks import Outgoing
from dfl_lightning.round.hosts import RunModule

PAIR_MATRICES = 12
"""Matrices of 8-byte numbers, one for each pair of nodes, that a round holds at a time, more or less."""

LINK_BYTES = 275
"""What networkx needs for an edge, as measured."""


def predicted_memory(module: RunModule) -> dict[str, int]:
    """Bytes by what they are for, besides the libraries.

    Args:
        module: with its bank and engine.

    Returns:
        `rows` (row sets; a second buffer for those that rounds write), `data`, `work` (a cohort in each thread) and
        `pairs` (the graph; weights, masks and similarities of all pairs of nodes: quadratic by nature).
    """
    bank = module.bank
    rows = sum(_bytes(tensor) * (1 if name == "initial" else 2) for name, tensor in bank.boundary.rows.items())
    if module.federation.policy(Outgoing) is not None:
        rows += _bytes(bank.boundary.rows["models"])  # what is sent
    data = _bytes(module.federation.data.images) + _bytes(module.federation.data.labels)
    links = sum(topology.graph.number_of_edges() for topology in module.federation.topology.graphs)
    pairs = PAIR_MATRICES * 8 * bank.num_nodes**2 + LINK_BYTES * links
    return {"rows": rows, "data": data, "work": module.engine.cohort_bytes, "pairs": pairs}


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
