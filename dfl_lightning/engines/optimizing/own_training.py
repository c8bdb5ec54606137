"""Local training that differs between clients: learning rates, and numbers of epochs or batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from dfl_lightning.engines.local_work import Duration, Phase
from dfl_lightning.engines.optimizing.optimizers import Hyperparameters


@dataclass(frozen=True)
class OwnTraining:
    """Clients' own learning rates and phases in a round.

    An engine trains clients with equal numbers side by side, and the others apart, so that an optimizer of torch has
    one rate for all of its clients.

    Args:
        rates: each client's rate of the optimizer's first group, before any schedule; None: all have the run's own.
        base: the optimizer's own rate of its first group, above 0: another group's rate, and that of a schedule, is
            changed by the same factor as the first group's.
        durations: each client's length of local training; None: all have the run's own.
        phases: phases of the round by length of local training.
    """

    rates: tuple[float, ...] | None = None
    base: float = 1.0
    durations: tuple[Duration, ...] | None = None
    phases: Mapping[Duration, tuple[Phase, ...]] | None = None

    def divide(self, owners: Tensor, jobs: Sequence[Tensor]) -> list[Tensor]:
        """Divide groups of jobs so that all clients of a group have the same numbers.

        Args:
            owners: the client of each job, long [J].
            jobs: groups of indices of jobs, long.
        """
        pieces: list[Tensor] = []
        for group in jobs:
            alike: dict[object, list[int]] = {}
            for place, client in enumerate(owners[group].tolist()):
                alike.setdefault(self._numbers(client), []).append(place)
            pieces += [group[places] for places in alike.values()]
        return pieces

    def phases_of(self, client: int, common: tuple[Phase, ...]) -> tuple[Phase, ...]:
        """Return a client's phases; `common` are those of the run's own length of training."""
        if self.durations is None or self.phases is None:
            return common
        return self.phases[self.durations[client]]

    def hyperparameters_of(self, client: int, common: Hyperparameters) -> Hyperparameters:
        """Return a client's options of each group in a round; `common` are those of the run.

        Examples:
            >>> OwnTraining(rates=(0.5, 0.75), base=0.25).hyperparameters_of(1, ({"lr": 0.25}, {"lr": 0.5}))
            ({'lr': 0.75}, {'lr': 1.5})
        """
        if self.rates is None:
            return common
        rate = self.rates[client]
        return tuple({**fields, "lr": rate * (fields["lr"] / self.base)} for fields in common)

    def without_durations(self) -> OwnTraining | None:
        """Return the rates alone, for training whose length is the same for all clients; None without rates."""
        return None if self.rates is None else replace(self, durations=None, phases=None)

    def _numbers(self, client: int) -> object:
        rate = None if self.rates is None else self.rates[client]
        return rate, None if self.durations is None else self.durations[client]
