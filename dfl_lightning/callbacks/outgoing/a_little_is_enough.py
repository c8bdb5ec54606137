"""An attack: adversaries agree on one model that is a little off, and near enough to others to be believed."""

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
    """All adversaries send `mean - z * std`, of the models that they would have sent, in each parameter.

    With a small z this model is nearer to the mean than many honest ones (Baruch, Baruch and Goldberg, NeurIPS 2019,
    arXiv 1902.06635). Mean and standard deviation are over the adversaries that send in the round, as a population; of
    one alone the deviation is 0. They train as all others do and keep their own model. Accuracies count them like all
    others.

    Args:
        fraction: share of the clients that are adversaries, drawn by the run's seed, rounded to a whole number.
        clients: the ids of the adversaries, in place of a fraction. Without either they are those whom the data know:
            the clients with falsified labels (`data.partition FlippedLabels`).
        z: how many standard deviations they are off, above 0; null: what the paper expects to stay unnoticed, Phi(z) =
            (n - m - s) / (n - m) with s = floor(n / 2 + 1) - m, of n clients and m adversaries.
    """

    def __init__(
        self, fraction: float | None = None, clients: Sequence[int] | None = None, z: float | None = 1.5
    ) -> None:
        super().__init__(fraction, clients)
        if z is not None and not (z > 0 and math.isfinite(z)):
            raise UserError(f"outgoing.z={z}; it is a number of standard deviations above 0")
        self.z = z

    def start(self, federation: Federation) -> None:
        """Refuse a single adversary, which has no deviation, and numbers for which the paper has no z."""
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
        """Say how many standard deviations the adversaries are off.

        Args:
            federation: of the run.
        """
        if self.z is not None:
            return self.z
        return hidden_deviations(federation.num_clients, int(self.who(federation).sum()))

    def on_outgoing(self, round: Round) -> None:
        """Put one message in the place of those of all adversaries that send."""
        send_alike(round, self.senders(round), partial(shifted_means, z=self.deviations(round.federation)))
