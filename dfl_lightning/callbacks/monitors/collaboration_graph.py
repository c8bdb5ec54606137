"""The graph of selected neighbours: its sparsity, its symmetry and its malicious neighbours."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from dfl_lightning.callbacks.base import Monitor, honest_clients
from dfl_lightning.round.record import Round

if TYPE_CHECKING:
    from dfl_lightning.round.federation import Federation


class CollaborationGraph(Monitor):
    """Sparsity, symmetry and malicious neighbours of the graph of selected neighbours (C_k of DPFL, section 4.2).

    The graph has a link where a client has selected another one to mix with; models that it received only to evaluate
    them do not count (`GraphSparsity` counts them). Logs `collaboration_sparsity`: the share of the m (m - 1) ordered
    pairs of clients without a link; `collaboration_symmetry`: the share of the links whose reverse is also a link, not
    logged without links; and `malicious_neighbours`: the share of a benign client's neighbours that falsify their
    labels or their messages, as a mean over the benign clients that have a neighbour, not logged without malicious
    clients.
    """

    def start(self, federation: Federation) -> None:
        """Declare the columns: none with servers, and `malicious_neighbours` only if some clients are malicious."""
        graph = ("collaboration_sparsity", "collaboration_symmetry") if not federation.num_servers else ()
        malicious = ("malicious_neighbours",) if graph and honest_clients(federation) is not None else ()
        self.logs = (*graph, *malicious)

    def on_round_end(self, round: Round) -> None:
        """Log the measures of the selected links."""
        if round.num_servers or not round.has("selected"):
            return
        chosen, m = round.selected, round.num_clients
        possible = m * (m - 1)
        round.log("collaboration_sparsity", 1 - len(chosen) / possible if possible else 1.0)
        if len(chosen):
            mutual = chosen.places(chosen.senders, chosen.receivers) >= 0
            round.log("collaboration_symmetry", int(mutual.sum()) / len(chosen))
        benign = honest_clients(round.federation)
        if benign is None:
            return
        of_benign = chosen.between(receivers=benign)
        malicious = torch.zeros(m, dtype=torch.float64)
        malicious.index_add_(0, of_benign.receivers, (~benign[of_benign.senders]).double())
        counts = of_benign.count[:m]
        if (counts > 0).any():
            round.log("malicious_neighbours", float((malicious[counts > 0] / counts[counts > 0]).mean()))
