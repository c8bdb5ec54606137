"""Measure the graph of chosen collaborators: its sparsity, its symmetry and its malicious neighbours."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from dfl_lightning.callbacks.base import Monitor, honest_clients
from dfl_lightning.round.record import Round

if TYPE_CHECKING:
    from dfl_lightning.round.federation import Federation


class CollaborationGraph(Monitor):
    """Sparsity, symmetry and malicious neighbours of the graph of selected neighbours (C_k of DPFL, section 4.2).

    A link is there where a client has selected another one to mix with, whatever it has received to evaluate besides
    (`GraphSparsity` counts that). Logs `collaboration_sparsity`: the share of the m (m - 1) ordered pairs of clients
    without a link; `collaboration_symmetry`: the share of the links whose reverse is there too, silent where there is
    no link; and `malicious_neighbours`: the share of a benign client's neighbours that falsify their labels or their
    messages, as a mean over the benign clients that have a neighbour, silent where no client is malicious.
    """

    def start(self, federation: Federation) -> None:
        """Log nothing under servers, which clients do not select, and of malicious clients only where there are some.

        Args:
            federation: of the run.
        """
        graph = ("collaboration_sparsity", "collaboration_symmetry") if not federation.num_servers else ()
        malicious = ("malicious_neighbours",) if graph and honest_clients(federation) is not None else ()
        self.logs = (*graph, *malicious)

    def on_round_end(self, round: Round) -> None:
        """Count the links of the round's selection."""
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
        theirs = chosen.between(receivers=benign)
        malicious = torch.zeros(m, dtype=torch.float64)
        malicious.index_add_(0, theirs.receivers, (~benign[theirs.senders]).double())
        have = theirs.count[:m] > 0
        if have.any():
            round.log("malicious_neighbours", float((malicious[have] / theirs.count[:m][have]).mean()))
