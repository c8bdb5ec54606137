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
    """Who has a low loss counts more: weights are a softmax of minus the losses over T (AFIND+ eq. 14 to 16).

    Args:
        temperature: T, above 0; a large T tends to equal weights.
        contribution: `cross`: the loss of the received model on the receiver's own data; `printed`: the loss of the
            receiver's model on the sender's data, with the sender's personal parameters, smoothed over the receiver's
            local training (eq. 15), for which the receiver sends both of its models to each sender; `own`: the loss of
            what the sender sends on the sender's own data, smoothed over its local training.
        gamma: weight of the former loss in eq. 15; used by `printed` and `own`.
        smooth: which loss is the former one: `steps`: that before the round's local training; `rounds`: the smoothed
            loss of the last round in which there was one, so that a receiver sends its trained model only.
        include_self: whether the receiver's own model takes part.
        split: the data that losses are of: `train` or `val`. A model has seen its own training data: where it knows
            them by heart, its weight there is too large.
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
        if smooth == "rounds" and contribution == "cross":
            raise UserError(
                "aggregation.smooth=rounds is for the losses of eq. 15, and contribution=cross smooths none; use "
                "--aggregation.contribution printed, or drop it"
            )
        self.include_self, self.split, self.smooth = include_self, split, smooth
        self.own_losses: Tensor | None = None  # smoothed loss of each client when it last took part, float64 [m]
        self.asked_losses: LinkMemory | None = None  # smoothed losses of senders that were asked in former rounds

    def start(self, federation: Federation) -> None:
        """Refuse servers, which have no data to judge models with, and what a sender could not be asked about."""
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
        """Refuse runs in which a receiver cannot send its models to those that it learns from."""
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
        """Tell whether receivers send their models from before the round to be judged."""
        return self.smooth == "steps" and self.gamma > 0

    def on_weigh(self, round: Round) -> None:
        """Write a softmax over what is mixed."""
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
        found = round.evaluate(References.rows("trained", receivers, senders, "trained"), self.split).losses
        if self._sends_starts:
            round.charge_starts(Links.of(senders, receivers, round.num_nodes))
            former = References.rows("models", receivers, senders, "models")
            found = smoothed_loss(round.federation.engine.evaluate(former, self.split).losses, found, self.gamma)
        elif self.smooth == "rounds":
            if self.asked_losses is None:
                self.asked_losses = LinkMemory.empty(round.num_nodes)
            found = averaged_losses(self.asked_losses.read(asked), found, 1 - self.gamma)
            self.asked_losses.write_known(asked, found)
        round.charge_message("loss", asked, BYTES)
        losses = torch.full_like(round.votes, float("nan"), dtype=torch.float64)
        losses[counted] = found
        return losses

    def _own(self, round: Round) -> Tensor:
        """Each row's loss, its owner's own smoothed one, the same towards every receiver, float64 [P]."""
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
