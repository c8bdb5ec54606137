"""Mean input of a layer on clients' own samples; if the layer is the head, this is the mean of their features."""

from __future__ import annotations

import torch
from torch import Tensor

from dfl_lightning.bank.card import one_sentence
from dfl_lightning.bank.matmul import one_blas_thread
from dfl_lightning.bank.references import References
from dfl_lightning.engines.calling.global_draws import refuse_global_draws
from dfl_lightning.engines.cohorts import by_cohort
from dfl_lightning.engines.engine import Engine
from dfl_lightning.engines.float32 import float32_arithmetic
from dfl_lightning.utils.thread_pool import workers


def mean_inputs(engine: Engine, references: References, layer: str, split: str) -> Tensor:
    """Compute the mean input of a layer for each client, over all dimensions but the last one.

    All processes call this with the same arguments; each does the owners of its own cohorts.

    Args:
        engine: the engine with the models and the data.
        references: the models, at most one for each client.
        layer: name of the layer in `EngineConfig.watched`.
        split: the clients' samples: `train` or `val`.

    Returns:
        float64 [own, features]; zeros for clients without a reference, and for those without samples.
    """
    bank, ranks, config = engine.bank, engine.bank.ranks, engine.config
    bank.join_device()
    mine = references.take(torch.nonzero(ranks.at_home(references.owners)).squeeze(1))
    pieces = [some for jobs in by_cohort(mine.owners, engine.cohorts) for some in jobs.split(engine.predicted_at_once)]

    def work(jobs: Tensor) -> Tensor:
        with torch.no_grad():
            outputs = engine.outputs(mine.take(jobs), (split,), pool)
            features = [by_split[split].features[layer] for by_split in outputs]
            return torch.stack([values.flatten(0, -2).sum(0) / max(1, values[..., 0].numel()) for values in features])

    with (
        bank.timed("evaluate"),
        float32_arithmetic(config.tf32),
        bank.with_remote_rows(mine),
        ranks.together(),
        one_sentence(),
        refuse_global_draws(config, engine.data, "an evaluation"),
        workers(engine.threads) as pool,
        one_blas_thread(),
    ):
        done = pool.map(work, pieces, between=engine.between_cohorts)
    # A process may have no job, and learns the width from the others.
    width = -ranks.least(-max((part.shape[1] for part in done), default=0))
    rows = bank.stored("models")
    means = torch.zeros(len(rows), width, dtype=torch.float64, device=rows.device)
    for jobs, part in zip(pieces, done, strict=True):
        means[ranks.place[mine.owners[jobs]].to(rows.device)] = part.to(rows.device)
    return means
