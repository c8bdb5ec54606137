"""What aggregations by distances between models of the round have in common."""

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
    """An aggregation that weighs the rows with a vote by distances: a new one implements `weigh`.

    Distances are over the shared parameters, of the models that others sent and, of a client itself, the one that it
    trained; buffers are averaged by the same weights.
    """

    def start(self, federation: Federation) -> None:
        """Rows that are no client's model of this round cannot be compared."""
        refuse_stored_rows(federation, self, "compares")

    def weigh(self, round: Round, voters: Links, votes: Tensor) -> Tensor:
        """Weights of rows with a vote.

        Args:
            round: to compare rows, and to log.
            voters: receivers and the rows that they have a vote for.
            votes: how often each counts, float64 [E], above 0.

        Returns:
            float64 [E]; they sum to 1 for a receiver, or are all 0: then it keeps its own model.
        """
        raise NotImplementedError(f"{type(self).__name__} must implement weigh(round, voters, votes)")

    def on_weigh(self, round: Round) -> None:
        """Weights of the rows with a vote; a receiver that finds none of them good keeps its own model."""
        voters, voted = round.voters, round.votes > 0
        with_votes = Links(voters.receivers[voted], voters.senders[voted], round.num_nodes)
        weights = torch.zeros(len(voters), dtype=torch.float64)
        weights[voted] = self.weigh(round, with_votes, round.votes[voted])
        kept = voters.any(voted) & ~voters.any(weights != 0)
        round.weights = weights + (kept[voters.receivers] & (voters.receivers == voters.senders))


def compared(round: Round, voters: Links) -> Neighbourhoods:
    """Distances between all models of each receiver's neighbourhood; each model that it received costs it one.

    Args:
        round: whose models are compared.
        voters: receivers and the rows that they have a vote for.
    """
    own = torch.full((len(voters),), torch.nan, dtype=torch.float64)
    itself = voters.any(voters.receivers == voters.senders)[voters.receivers]  # not so a server
    own[itself] = round.compare("trained", voters.keep(itself)).distances
    pairs = pairs_received(voters)
    round.charge_comparison("sent", voters)
    return Neighbourhoods(voters, own, pairs, round.bank.compare("sent", pairs).distances)


def log_share(round: Round, name: str, voters: Links, where: Tensor) -> None:
    """Log the share of the received models of which something holds; nothing where none was received.

    Args:
        round: to log in.
        name: of the column.
        voters: receivers and the rows that they have a vote for.
        where: of which it holds, bool [E].
    """
    foreign = voters.receivers != voters.senders
    if foreign.any():
        round.log(name, float(where[foreign].double().mean()))
