"""How much memory a run takes, predicted from its shapes."""

from __future__ import annotations

from torch import Tensor

from dfl_lightning.callbacks import FDMS, Outgoing
from dfl_lightning.callbacks.substitution.fdms import PAIR_BYTES, expected_pairs
from dfl_lightning.round.federation import LINK_BYTES, Federation, listed_links
from dfl_lightning.round.hosts import RunModule

EDGE_BYTES = 275
"""What networkx needs for an edge, as measured."""

CLIENT_BYTES = 5_000
"""What Python keeps and draws for a client in a round (its lists of samples, jobs, generators), as measured."""

PAIR_MATRICES = 6
"""Matrices of 8-byte numbers, one for each pair of clients, that FL-FDMS holds at a server at a time."""


def predicted_memory(module: RunModule) -> dict[str, int]:
    """Bytes by what they are for, besides the libraries.

    Args:
        module: with its bank and engine.

    Returns:
        `rows` (row sets; a second buffer for those that rounds write), `data`, `work` (a cohort in each thread) and
        `links` (the graph, the numbers of a round's links and of its clients, and scores of pairs, which a server or
        receivers without one keep).
    """
    bank = module.bank
    rows = sum(_bytes(tensor) * (1 if name == "initial" else 2) for name, tensor in bank.boundary.rows.items())
    if module.federation.policy(Outgoing) is not None:
        rows += _bytes(bank.boundary.rows["models"])  # what is sent
    data = _bytes(module.federation.data.images) + _bytes(module.federation.data.labels)
    return {"rows": rows, "data": data, "work": module.engine.cohort_bytes, "links": _links(module.federation)}


def _links(federation: Federation) -> int:
    topology, n = federation.topology, federation.num_nodes
    edges = sum(one.written.number_of_edges() for one in topology.graphs)
    listed = listed_links(federation)
    found = EDGE_BYTES * edges + CLIENT_BYTES * federation.num_clients + LINK_BYTES * listed
    if federation.policy(FDMS) is None:
        return found
    return found + (PAIR_MATRICES * 8 * n**2 if topology.num_servers else PAIR_BYTES * expected_pairs(federation))


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
