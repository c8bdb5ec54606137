"""PACFL: clusters of clients with similar inputs, computed once before training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch

from dfl_lightning.callbacks.base import Selection
from dfl_lightning.functional import class_vectors, clusters_below, proximity
from dfl_lightning.links import Links
from dfl_lightning.round.ledger import BYTES
from dfl_lightning.round.record import Round
from dfl_lightning.utils.errors import UserError

if TYPE_CHECKING:
    from dfl_lightning.round.federation import Federation


class PACFL(Selection):
    """The choice of all neighbours in the client's cluster (PACFL, Vahidian et al., arXiv 2209.10526, algorithm 1).

        d_ij = smallest principal angle between span(U_i) and span(U_j)          (`angles`)
        C_i = neighbours of i in its cluster, by agglomerative clustering of d up to the threshold

    U_i are the first `vectors` left singular vectors of the inputs of each class of client i. Before the first round
    each client sends U_i to all others, once, and all clients compute the same clusters from them. The column
    `pacfl_clusters` has their number; a client that is alone in its cluster trains alone.

    Args:
        threshold: angle in degrees; clusters are joined while they are not farther apart.
        vectors: p, the number of singular vectors of each class.
        distance: `angles`: as above; `trace`: the sum of the angles between vectors with the same index; `entries`: the
            smallest angle between any two vectors.
        linkage: `average` or `weighted`; see `functional.clusters_below`.
    """

    supports_servers = False
    lists_candidates = False
    needs_classes = True
    state = ("mates", "number")
    logs = ("pacfl_clusters",)
    k = "all"
    against_clock = "all clients wait for the signatures of all others before the first round"

    def __init__(
        self,
        threshold: float = 10.0,
        vectors: int = 3,
        distance: Literal["angles", "trace", "entries"] = "angles",
        linkage: Literal["average", "weighted"] = "average",
    ) -> None:
        if not threshold >= 0:
            raise UserError(f"selection.threshold={threshold}; it is an angle in degrees, 0 or more")
        if vectors < 1:
            raise UserError(f"selection.vectors={vectors}; it is a number of singular vectors, 1 or more")
        for name, word, choices in (
            ("distance", distance, ("angles", "trace", "entries")),
            ("linkage", linkage, ("average", "weighted")),
        ):
            if word not in choices:
                raise UserError(f"selection.{name}={word}; choose one of {', '.join(choices)}")
        self.threshold, self.vectors, self.distance, self.linkage = threshold, vectors, distance, linkage
        self.mates: Links  # pairs of clients in the same cluster
        self.number: int  # number of clusters

    def start(self, federation: Federation) -> None:
        """Require training data of each client."""
        without = torch.nonzero(federation.data.sizes("train") == 0).squeeze(1).tolist()
        if without:
            raise UserError(f"selection PACFL summarises training data, and client {without[0]} has none")

    def on_start(self, round: Round) -> None:
        """Compute the clients' singular vectors, charge their exchange, and compute the clusters."""
        data, m = round.data, round.num_clients
        signatures = []
        for part in data.train:
            inputs, labels = data.batch(part.to(data.images.device), dtype=torch.float64)
            signatures.append(class_vectors(inputs.cpu(), labels.cpu(), self.vectors))
        sizes = torch.tensor([BYTES * signature.numel() for signature in signatures])
        all_pairs = Links.complete(m)
        round.charge_message("signature", all_pairs, sizes[all_pairs.senders])
        clusters = clusters_below(proximity(signatures, self.distance), self.threshold, self.linkage)
        self.mates, self.number = all_pairs.within_groups(clusters), int(clusters.max()) + 1

    def on_select(self, round: Round) -> None:
        """Select the neighbours in the receiver's cluster; with a `budget`, that many at random."""
        round.selected = round.draw_links(round.candidates.intersection(self.mates), self.limits(round), "pacfl budget")

    def on_round_end(self, round: Round) -> None:
        """Log the number of clusters."""
        round.log("pacfl_clusters", self.number)
