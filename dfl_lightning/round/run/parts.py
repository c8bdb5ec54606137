"""The parts of a run that the module and the callbacks use."""

from __future__ import annotations

from dataclasses import dataclass

from dfl_lightning.bank.bank import Bank
from dfl_lightning.engines.engine import Engine
from dfl_lightning.engines.local_work import Phase
from dfl_lightning.engines.optimizing.optimizers import ClientOptimizer
from dfl_lightning.engines.optimizing.schedule import Schedule
from dfl_lightning.round.federation import Federation


@dataclass(frozen=True)
class RunParts:
    """The parts of a run that has been set up.

    Args:
        federation: data, topology, network, layout and policies, which are fixed.
        phases: the local work of the first round.
        optimizer: the optimizer of one client.
        schedule: the schedule of its options over the rounds.
        scheduled: options of the optimizer that change from round to round, in addition to `lr`.
        engine: the engine that trains and scores models.
        bank: the clients' models.
    """

    federation: Federation
    phases: tuple[Phase, ...]
    optimizer: ClientOptimizer
    schedule: Schedule
    scheduled: tuple[str, ...]
    engine: Engine
    bank: Bank
