"""The columns of a run's metrics.csv, as they can be known before its first round."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from torch import Tensor

from dfl_lightning.callbacks.base import honest_clients
from dfl_lightning.functional import undefined_counts
from dfl_lightning.round.run.hosts import RunModule

OF_ROUNDS = (
    *("train_loss", "neighbours", "active", "models_received", "probes_received", "proxies_received"),
    *("bytes_received", "messages_received", "diverged", "seconds"),
)
"""Numbers that every round has, also without an evaluation."""


UNDEFINED = "_undefined"
"""The end of the names of columns that count clients for which a number is undefined."""


def undefined_numbers(results: Mapping[str, Tensor], score: str, chosen: Collection[str]) -> dict[str, float]:
    """Count the clients for which a number of an evaluation is undefined, by column.

    A metric that the user has chosen always has such a column, another number only where it is undefined for a client.

    Args:
        results: arrays of an evaluation by names such as `test_auroc`, [m] each.
        score: name of the task's score.
        chosen: names of the metrics that the user has chosen, without `test_`.
    """
    counts = undefined_counts(results, score)
    kept = {name: count for name, (count, _) in counts.items() if count or name.partition("_")[2] in chosen}
    return {f"{name}{UNDEFINED}": float(count) for name, count in kept.items()}


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
            names += [f"{split}_{name}{UNDEFINED}" for name in module.engine.metrics]
    tested = f"test_{federation.task.score}"
    if tested in names:
        names += [f"{tested}_std", f"{tested}_worst10"]
        names += [f"{tested}_adversaries"] * (honest_clients(federation) is not None)
    if federation.has_global_model:
        names += [f"global_test_{name}" for name in ("loss", *federation.task.numbers)]
    declared = [user.logs for user in federation.policies] + [federation.objective.logs]
    names += [name for logs in declared for name in logs]
    return tuple(dict.fromkeys(names))
