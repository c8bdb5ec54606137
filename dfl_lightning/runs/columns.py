"""The columns of a run's metrics.csv, as they can be known before its first round."""

from __future__ import annotations

from dfl_lightning.callbacks.base import honest_clients
from dfl_lightning.round.run.hosts import RunModule

OF_ROUNDS = (
    *("train_loss", "neighbours", "active", "models_received", "probes_received", "proxies_received"),
    *("bytes_received", "messages_received", "diverged", "seconds"),
)
"""Numbers that every round has, also without an evaluation."""


def expected_columns(module: RunModule) -> tuple[str, ...]:
    """Return the names of all numbers that a round of the run may have, without `round` itself.

    They are the numbers of every round, those of the evaluations for which there are data, and the names that policies,
    monitors and the objective declare in `logs`.

    Args:
        module: the module after its setup, with federation and engine.
    """
    federation = module.federation
    names = list(OF_ROUNDS)
    for split in ("val", "test"):
        if int(federation.data.sizes(split).sum()):
            names += [f"{split}_{name}" for name in ("loss", *module.engine.metrics)]
    tested = f"test_{federation.task.score}"
    if tested in names:
        names += [f"{tested}_std", f"{tested}_worst10"]
        names += [f"{tested}_adversaries"] * (honest_clients(federation) is not None)
    if federation.has_global_model:
        names += [f"global_test_{name}" for name in ("loss", *federation.task.numbers)]
    declared = [user.logs for user in federation.policies] + [federation.objective.logs]
    names += [name for logs in declared for name in logs]
    return tuple(dict.fromkeys(names))
