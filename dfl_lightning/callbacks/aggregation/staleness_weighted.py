"""An average that gives old models less weight."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dfl_lightning.callbacks.aggregation.averages import Uniform
from dfl_lightning.functional import staleness_factors, uniform_weights
from dfl_lightning.round.record import Round
from dfl_lightning.utils.errors import UserError

if TYPE_CHECKING:
    from dfl_lightning.round.federation import Federation


class StalenessWeighted(Uniform):
    """The average that gives old models less weight, on an asynchronous clock.

        W_ij = v_ij s_ij / sum_k v_ik s_ik,    s_ij = (1 + age_ij / unit)^-power

    age_ij is the time since j published the model that i mixes, v_ij is its number of votes, and s_ii = 1. The factor
    is the polynomial one of FedAsync (Xie, Koyejo and Gupta, arXiv 1903.03934), with time in place of the number of a
    server's updates.

    Args:
        power: exponent, 0 or more; 0 is the plain average.
        unit: seconds of simulated time, above 0.
    """

    def __init__(self, power: float = 0.5, unit: float = 1.0) -> None:
        super().__init__()
        if not 0 <= power < float("inf"):
            raise UserError(f"aggregation.power={power}; it is a number, 0 or more")
        if not 0 < unit < float("inf"):
            raise UserError(f"aggregation.unit={unit}; it is a number of seconds above 0")
        self.power, self.unit = power, unit

    def start(self, federation: Federation) -> None:
        """Require a clock on which models have ages."""
        if not federation.is_asynchronous:
            raise UserError(
                "aggregation StalenessWeighted weighs models by their ages, which only clock Asynchronous gives them; "
                "set the clock, or use --aggregation Uniform"
            )

    def on_weigh(self, round: Round) -> None:
        """Multiply votes by the factors of the models' ages, and divide by their sum."""
        ages = round.selected.spread(round.age, round.voters, 0.0)
        factors = staleness_factors(ages / self.unit, self.power)
        round.weights = uniform_weights(round.votes * factors, round.voters)
