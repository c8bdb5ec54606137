"""The memory that a run will take, predicted from its shapes."""

from __future__ import annotations

from torch import Tensor

from dfl_lightning.callbacks import FDMS, Outgoing
from dfl_lightning.callbacks.substitution.fdms import PAIR_BYTES, expected_pairs
from dfl_lightning.round.federation import LINK_BYTES, Federation, listed_links
from dfl_lightning.round.run.hosts import RunModule

EDGE_BYTES = 275
"""Memory of an edge in networkx, measured."""

CLIENT_BYTES = 5_000
"""Memory of Python's objects for a client in a round (lists of samples, jobs, generators), measured."""

PAIR_MATRICES = 6
"""Matrices [clients, clients] of 8-byte numbers that FL-FDMS holds at the same time if there is a server."""


def predicted_memory(module: RunModule) -> dict[str, int]:
    """Predict the memory of a run in bytes, by purpose; that of Python and the libraries is not included.

    Args:
        module: the module after its setup, with bank and engine.

    Returns:
        `rows` (row sets, with a second buffer for those that rounds write, and the base), `data`, `work` (a cohort in
        each thread) and `links` (the graph, the numbers of a round's links and clients, and the scores of pairs of
        FL-FDMS).
    """
    bank = module.bank
    rows = sum(_bytes(tensor) * (1 if name == "initial" else 2) for name, tensor in bank.boundary.rows.items())
    if module.federation.policy(Outgoing) is not None:
        rows += _bytes(bank.boundary.rows["models"])  # what is sent
    rows += module.federation.layout.base_bytes
    data = _bytes(module.federation.data.images) + _bytes(module.federation.data.labels)
    return {"rows": rows, "data": data, "work": module.engine.cohort_bytes, "links": _links(module.federation)}


def _links(federation: Federation) -> int:
    """Estimate the bytes of the graph, of a round's lists of links and clients, and of the scores of FL-FDMS."""
    topology, n = federation.topology, federation.num_nodes
    edges = sum(one.written.number_of_edges() for one in topology.graphs)
    listed = listed_links(federation)
    total = EDGE_BYTES * edges + CLIENT_BYTES * federation.num_clients + LINK_BYTES * listed
    if federation.policy(FDMS) is None:
        return total
    return total + (PAIR_MATRICES * 8 * n**2 if topology.num_servers else PAIR_BYTES * expected_pairs(federation))


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
