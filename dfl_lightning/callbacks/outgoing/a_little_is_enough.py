"""An attack: adversaries agree on one model that is wrong, but near enough to honest ones to be accepted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from dfl_lightning.callbacks.outgoing.attack import Attack
from dfl_lightning.functional import hidden_deviations, shifted_means
from dfl_lightning.round.colluding import send_alike
from dfl_lightning.round.record import Round
from dfl_lightning.utils.errors import UserError

if TYPE_CHECKING:
    from dfl_lightning.round.federation import Federation


class ALittleIsEnough(Attack):
    """The attack "A little is enough" (Baruch, Baruch and Goldberg, NeurIPS 2019, arXiv 1902.06635).

        sent = mean - z * std, in each parameter, the same from all adversaries

    Mean and standard deviation are over the models that the adversaries of the round would have sent, as a population;
    with one adversary the deviation is 0. With a small z this model is nearer to the mean than many honest ones.
    Adversaries train like all clients and keep their own model.

    Args:
        fraction: share of the clients that are adversaries, drawn with the run's seed, rounded to a whole number.
        clients: ids of the adversaries, instead of a fraction. Without both, the adversaries are the clients with
            falsified labels (`data.partition FlippedLabels`).
        z: number of standard deviations, above 0; null: the z that the paper expects to stay unnoticed, Phi(z) =
            (n - m - s) / (n - m) with s = floor(n / 2 + 1) - m, for n clients and m adversaries.
    """

    against_clock = "adversaries look at what all others send in the same round"

    def __init__(
        self, fraction: float | None = None, clients: Sequence[int] | None = None, z: float | None = 1.5
    ) -> None:
        super().__init__(fraction, clients)
        if z is not None and not (z > 0 and math.isfinite(z)):
            raise UserError(f"outgoing.z={z}; it is a number of standard deviations above 0")
        self.z = z

    def start(self, federation: Federation) -> None:
        """Refuse a single adversary, which has no deviation, and numbers of clients without a valid z."""
        super().start(federation)
        adversaries = int(self.who(federation).sum())
        if adversaries < 2:
            raise UserError(
                "outgoing ALittleIsEnough: the models of one adversary have no standard deviation; name two or more by "
                "--outgoing.fraction or --outgoing.clients"
            )
        z = self.deviations(federation)
        if not (z > 0 and math.isfinite(z)):
            raise UserError(
                f"outgoing.z=null: with {adversaries} adversaries of {federation.num_clients} clients the paper's z is "
                f"{z:.2g}; set a number above 0"
            )

    def deviations(self, federation: Federation) -> float:
        """Return z: the given number of standard deviations, or that of the paper."""
        if self.z is not None:
            return self.z
        return hidden_deviations(federation.num_clients, int(self.who(federation).sum()))

    def on_outgoing(self, round: Round) -> None:
        """Replace the messages of all adversaries that send by the common one."""
        send_alike(round, self.senders(round), partial(shifted_means, z=self.deviations(round.federation)))
