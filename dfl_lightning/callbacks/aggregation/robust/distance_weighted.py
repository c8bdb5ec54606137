"""The base class of aggregations whose weights depend on distances between models of the round."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dfl_lightning.callbacks.base import Aggregation, refuse_stored_rows
from dfl_lightning.functional import Neighbourhoods, pairs_received
from dfl_lightning.links import Links
from dfl_lightning.round.record import Round

if TYPE_CHECKING:
    from dfl_lightning.round.federation import Federation


class DistanceWeighted(Aggregation):
    """Base class of aggregations with weights from distances between models; a new one implements `weigh`.

    Distances are over the shared parameters, between the models that others sent and the one that the client trained;
    buffers are averaged with the same weights.
    """

    supports_clock = True

    def start(self, federation: Federation) -> None:
        """Refuse a substitution that mixes stored rows, which cannot be compared with models of this round."""
        refuse_stored_rows(federation, self, "compares")

    def weigh(self, round: Round, voters: Links, votes: Tensor) -> Tensor:
        """Return the weights of the rows with a vote.

        Args:
            round: the round, for comparisons and logs.
            voters: receivers and the rows that have a vote there.
            votes: number of votes of each row, float64 [E], above 0.

        Returns:
            Weights, float64 [E]; they sum to 1 for a receiver, or are all 0 if it keeps its own model.
        """
        raise NotImplementedError(f"{type(self).__name__} must implement weigh(round, voters, votes)")

    def on_weigh(self, round: Round) -> None:
        """Write the weights of `weigh`; a receiver whose weights are all 0 gives the weight 1 to its own model."""
        voters, voted = round.voters, round.votes > 0
        with_votes = Links(voters.receivers[voted], voters.senders[voted], round.num_nodes)
        weights = torch.zeros(len(voters), dtype=torch.float64)
        weights[voted] = self.weigh(round, with_votes, round.votes[voted])
        kept = voters.any(voted) & ~voters.any(weights != 0)
        round.weights = weights + (kept[voters.receivers] & (voters.receivers == voters.senders))


def compared(round: Round, voters: Links) -> Neighbourhoods:
    """Compute the distances between all models of each receiver's neighbourhood, and charge the received models.

    Args:
        round: the round whose models are compared.
        voters: receivers and the rows that have a vote there.
    """
    own = torch.full((len(voters),), torch.nan, dtype=torch.float64)
    itself = voters.any(voters.receivers == voters.senders)[voters.receivers]  # a server does not vote for its own row
    own[itself] = round.compare("trained", voters.keep(itself)).distances
    round.charge_comparison("sent", voters)
    versions = round.versions(voters)
    received, m = voters.keep(voters.receivers != voters.senders), round.num_clients
    oldest = int(versions.max()) if len(versions) else 0
    if round.published is None or not oldest:
        pairs = pairs_received(voters)
        return Neighbourhoods(voters, own, pairs, round.bank.distances_in_groups(["sent"], pairs, received))
    # Receivers may have different models of client j: the one of this wave is row j, the k-th published before k m + j.
    names = voters.senders + m * versions
    stacked = Links.of(voters.receivers, names, m, (1 + oldest) * m)
    pairs, received = pairs_received(stacked), stacked.keep(stacked.receivers != stacked.senders)
    apart = round.bank.distances_in_groups(["sent", *round.published.rows[:oldest]], pairs, received)
    return Neighbourhoods(voters, own, pairs, apart, names)


def log_share(round: Round, name: str, voters: Links, where: Tensor) -> None:
    """Log which share of the received models is in `where`; log nothing if no model was received.

    Args:
        round: the round to log in.
        name: column of `metrics.csv`.
        voters: receivers and the rows that have a vote there.
        where: the models that are counted, bool [E].
    """
    foreign = voters.receivers != voters.senders
    if foreign.any():
        round.log(name, float(where[foreign].double().mean()))
