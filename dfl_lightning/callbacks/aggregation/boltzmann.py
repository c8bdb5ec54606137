"""AFIND+'s Boltzmann aggregation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from dfl_lightning.bank.references import References
from dfl_lightning.callbacks.base import Aggregation, Outgoing, Substitution
from dfl_lightning.functional import averaged_losses, boltzmann_weights, smoothed_loss
from dfl_lightning.links import LinkMemory, Links
from dfl_lightning.round.ledger import BYTES
from dfl_lightning.round.record import Round
from dfl_lightning.utils.errors import UserError

if TYPE_CHECKING:
    from dfl_lightning.round.federation import Federation


class Boltzmann(Aggregation):
    """The average weighted by a softmax of minus the losses, so that low losses count more (AFIND+, arXiv 2407.04460).

        W_ij = v_ij exp(-L_ij / T) / sum_k v_ik exp(-L_ik / T)          (eq. 14 and 16)
        L_ij = (1 - gamma) loss after + gamma loss before               (eq. 15; `printed` and `own`)

    v_ij is the number of votes of model j, and L_ij is the loss that `contribution` names.

    Args:
        temperature: T, above 0; a large T tends to equal weights.
        contribution: the loss L_ij. `cross`: that of the received model on the receiver's own data, without eq. 15;
            `printed`: that of the receiver's model on the sender's data, with the sender's personal parameters,
            smoothed over the receiver's local training, for which the receiver sends both of its models to each sender;
            `own`: that of the sender's model on the sender's own data, smoothed over its local training.
        gamma: weight of the loss before, from 0 to 1.
        smooth: the loss before. `steps`: that of the model from before the round's local training; `rounds`: the
            smoothed loss of the last round that has one, so that a receiver sends only its trained model.
        include_self: whether the receiver's own model takes part.
        split: the data of the losses, `train` or `val`. A model fits its own training data best, so that its weight
            tends to be too large with `train`.
    """

    state = ("own_losses", "asked_losses")

    def __init__(
        self,
        temperature: float = 1.0,
        contribution: Literal["cross", "printed", "own"] = "cross",
        gamma: float = 0.9,
        smooth: Literal["steps", "rounds"] = "steps",
        include_self: bool = True,
        split: Literal["train", "val"] = "train",
    ) -> None:
        if temperature <= 0:
            raise UserError(f"aggregation.temperature={temperature}; it must be above 0")
        if not 0 <= gamma <= 1:
            raise UserError(f"aggregation.gamma={gamma}; it is a share between 0 and 1")
        self.temperature, self.contribution, self.gamma = temperature, contribution, gamma
        self.supports_clock = contribution == "cross"
        self.against_clock = "" if self.supports_clock else "it needs losses from clients that are still training"
        if smooth == "rounds" and contribution == "cross":
            raise UserError(
                "aggregation.smooth=rounds is for the losses of eq. 15, and contribution=cross smooths none; use "
                "--aggregation.contribution printed, or drop it"
            )
        self.include_self, self.split, self.smooth = include_self, split, smooth
        self.own_losses: Tensor | None = None  # smoothed loss of each client from when it last took part, float64 [m]
        self.asked_losses: LinkMemory | None = None  # smoothed losses at the senders of former rounds

    def start(self, federation: Federation) -> None:
        """Refuse servers, which have no data to evaluate models on, and runs whose senders cannot evaluate models."""
        if federation.topology.num_servers and self.contribution == "cross":
            raise UserError(
                "aggregation Boltzmann with contribution=cross judges models on the receiver's data, and a server has "
                "none; use --aggregation.contribution own or --aggregation Uniform"
            )
        if self.contribution == "printed":
            self._require_answers(federation)
        if self.split == "val":
            federation.require_validation("aggregation Boltzmann with split=val")

    def _require_answers(self, federation: Federation) -> None:
        """Refuse runs in which a receiver cannot send its models to its senders."""
        if federation.topology.num_servers:
            raise UserError(
                "aggregation Boltzmann with contribution=printed sends the model that a receiver has trained to its "
                "senders, and a server trains none; use --aggregation.contribution own or --aggregation Uniform"
            )
        if federation.topology.directed:
            raise UserError(
                "aggregation Boltzmann with contribution=printed sends each receiver's model to those that it learns "
                "from, and in this topology some links lead one way only; use an undirected topology, or "
                "--aggregation.contribution own"
            )
        substitution = federation.policy(Substitution)
        if substitution is not None and substitution.row_sets:
            raise UserError(
                "aggregation Boltzmann with contribution=printed asks the senders of a round, and substitution "
                f"{type(substitution).__name__} mixes stored models of clients that have dropped out; use "
                "--substitution FDMS or --substitution null"
            )
        if self._sends_starts and federation.policy(Outgoing) is not None:
            raise UserError(
                "aggregation Boltzmann with contribution=printed sends models from before the local training, which no "
                "Outgoing policy changes; use --aggregation.smooth rounds, or --outgoing null"
            )

    @property
    def _sends_starts(self) -> bool:
        """Flag that receivers also send their models from before the round to be evaluated."""
        return self.smooth == "steps" and self.gamma > 0

    def on_weigh(self, round: Round) -> None:
        """Write the softmax of minus the losses as weights."""
        if self.contribution == "cross":
            losses = round.vote_losses(self.split)
        elif self.contribution == "printed":
            losses = self._printed(round)
        else:
            losses = self._own(round)[round.voters.senders]
        round.weights = boltzmann_weights(losses, round.votes, round.voters, self.temperature)

    def _printed(self, round: Round) -> Tensor:
        """Return the loss of the receiver's model at each sender with a vote, float64 [len(voters)]; NaN elsewhere."""
        counted = round.votes > 0
        receivers, senders = round.voters.receivers[counted], round.voters.senders[counted]
        asked = Links(receivers, senders, round.num_nodes)
        at_senders = round.evaluate(References.rows("trained", receivers, senders, "trained"), self.split).losses
        if self._sends_starts:
            round.charge_starts(Links.of(senders, receivers, round.num_nodes))
            former = References.rows("models", receivers, senders, "models")
            before = round.federation.engine.evaluate(former, self.split).losses
            at_senders = smoothed_loss(before, at_senders, self.gamma)
        elif self.smooth == "rounds":
            if self.asked_losses is None:
                self.asked_losses = LinkMemory.empty(round.num_nodes)
            at_senders = averaged_losses(self.asked_losses.read(asked), at_senders, 1 - self.gamma)
            self.asked_losses.write_known(asked, at_senders)
        round.charge_message("loss", asked, BYTES)
        losses = torch.full_like(round.votes, float("nan"), dtype=torch.float64)
        losses[counted] = at_senders
        return losses

    def _own(self, round: Round) -> Tensor:
        """Return for each row the smoothed loss of its owner on the owner's data, float64 [P]; NaN for servers."""
        m, n = round.num_clients, round.num_nodes
        jobs = round.jobs.take(torch.nonzero(round.participants[round.jobs.owners]).squeeze(1))
        engine = round.federation.engine
        after = engine.evaluate(References.rows("sent", jobs.owners), self.split).losses
        unknown = torch.full((m,), float("nan"), dtype=torch.float64)
        losses = unknown if self.own_losses is None else self.own_losses.clone()
        if self.smooth == "rounds":
            losses[jobs.owners] = averaged_losses(losses[jobs.owners], after, 1 - self.gamma)
        else:
            losses[jobs.owners] = smoothed_loss(engine.evaluate(jobs, self.split).losses, after, self.gamma)
        self.own_losses = losses
        of_servers = torch.full((n - m,), float("nan"), dtype=torch.float64)
        return torch.cat([losses, of_servers])[round.row_owner]
