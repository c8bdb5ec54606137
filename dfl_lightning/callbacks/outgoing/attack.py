"""The base class of attacks, with the choice of the adversaries."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dfl_lightning.callbacks.base import Outgoing
from dfl_lightning.round.record import Round
from dfl_lightning.utils.errors import UserError
from dfl_lightning.utils.randomness.random_streams import stream

if TYPE_CHECKING:
    from dfl_lightning.round.federation import Federation


class Attack(Outgoing):
    """Base class of attacks: adversaries train like all clients and keep their own model, but send falsified ones.

    With the same seed and fraction all attacks have the same adversaries, so that they can be compared. Mean scores are
    over the honest clients; see `callbacks.base.honest_clients`.

    Args:
        fraction: share of the clients that are adversaries, drawn with the run's seed, rounded to a whole number.
        clients: ids of the adversaries, instead of a fraction. Without both, the adversaries are the clients with
            falsified labels (`data.partition FlippedLabels`).

    Raises:
        UserError: both are given, or the fraction is not from 0 to 1.
    """

    logs = ("adversary_links", "adversary_weight")

    def __init__(self, fraction: float | None = None, clients: Sequence[int] | None = None) -> None:
        if fraction is not None and not 0 <= fraction <= 1:
            raise UserError(f"outgoing.fraction={fraction}; it is a share from 0 to 1")
        if fraction is not None and clients is not None:
            raise UserError("outgoing.fraction and outgoing.clients both name the adversaries; keep one")
        self.fraction = fraction
        self.clients = None if clients is None else list(clients)

    def start(self, federation: Federation) -> None:
        """Refuse an attack without adversaries."""
        super().start(federation)
        if not self.who(federation).any():
            raise UserError(
                f"outgoing {type(self).__name__} has no adversaries; name them by --outgoing.fraction or "
                "--outgoing.clients, or use --outgoing null"
            )

    def on_mixed(self, round: Round) -> None:
        """Log the share of adversaries among the links and weights of honest nodes."""
        if round.has("weights"):  # a round in which all clients have dropped out has no weights
            log_adversaries(round)

    def adversaries(self, federation: Federation) -> Tensor:
        """Return the clients that falsify their messages, bool [m]: all of `who`."""
        return self.who(federation)

    def who(self, federation: Federation) -> Tensor:
        """Return the adversaries, bool [m].

        Raises:
            UserError: the data do not name adversaries, an id is out of range, or the fraction of the clients is 0.
        """
        m = federation.num_clients
        if self.fraction is None and self.clients is None:
            with_false_labels = federation.data.adversaries
            if with_false_labels is None:
                raise UserError(
                    f"outgoing {type(self).__name__}: the data do not name adversaries; name them by "
                    "--outgoing.fraction or --outgoing.clients, or use data.partition FlippedLabels"
                )
            return with_false_labels
        adversaries = torch.zeros(m, dtype=torch.bool)
        if self.clients is not None:
            outside = [client for client in self.clients if not 0 <= client < m]
            if outside:
                raise UserError(f"outgoing.clients names {outside[0]}, but there are {m} clients, 0 to {m - 1}")
            adversaries[self.clients] = True
        elif self.fraction is not None:
            number = math.floor(self.fraction * m + 0.5)
            if self.fraction > 0 and not number:
                raise UserError(f"outgoing.fraction={self.fraction:g} of {m} clients is none; raise it")
            adversaries[torch.randperm(m, generator=stream(federation.seed, "SignFlip adversaries"))[:number]] = True
        return adversaries


def adversaries_of(federation: Federation) -> Tensor | None:
    """Return the clients that take part in an attack of the run, bool [m]; None without an attack."""
    policies: tuple[object, ...] = federation.policies
    attacks = [policy.who(federation) for policy in policies if isinstance(policy, Attack)]
    return torch.stack(attacks).any(0) if attacks else None


def log_adversaries(round: Round) -> None:
    """Log the share of adversaries among the links that honest nodes selected, and their share of the weights.

    Args:
        round: the round after its mixing.
    """
    adversaries = adversaries_of(round.federation)
    assert adversaries is not None
    honest = torch.ones(round.num_nodes, dtype=torch.bool)
    honest[: round.num_clients] = ~adversaries
    chosen = round.selected.between(receivers=honest & round.receivers)
    if len(chosen):
        round.log("adversary_links", float((~honest[chosen.senders]).double().mean()))
    at_honest = honest[round.voters.receivers]
    total = float(round.weights[at_honest].sum())
    if total:
        of_adversaries = at_honest & ~honest[round.row_owner[round.voters.senders]]
        round.log("adversary_weight", float(round.weights[of_adversaries].sum()) / total)
