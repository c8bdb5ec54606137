"""The columns that a run's metrics.csv will have, before its first round."""

from __future__ import annotations

from dfl_lightning.callbacks.base import honest_clients
from dfl_lightning.round.hosts import RunModule

OF_ROUNDS = (
    *("train_loss", "neighbours", "active", "models_received", "probes_received", "proxies_received"),
    *("bytes_received", "messages_received", "diverged", "seconds"),
)
"""Numbers of a round, whatever is evaluated."""


def expected_columns(module: RunModule) -> tuple[str, ...]:
    """Names of the numbers that rounds of a run may have, `round` itself left out.

    They are those of every round, those of the evaluations that there are data for, and what policies, monitors and the
    objective declare in `logs`.

    Args:
        module: set up.
    """
    federation = module.federation
    found = list(OF_ROUNDS)
    for split in ("val", "test"):
        if int(federation.data.sizes(split).sum()):
            found += [f"{split}_{name}" for name in ("loss", *module.engine.metrics)]
    tested = f"test_{federation.task.score}"
    if tested in found:
        found += [f"{tested}_std", f"{tested}_worst10"]
        found += [f"{tested}_adversaries"] * (honest_clients(federation) is not None)
    if federation.has_global_model:
        found += [f"global_test_{name}" for name in ("loss", *federation.task.numbers)]
    logs = [user.logs for user in federation.policies] + [federation.objective.logs]
    found += [name for names in logs for name in names]
    return tuple(dict.fromkeys(found))
