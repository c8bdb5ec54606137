"""The mean input of a layer on clients' own samples: what a featurizer makes of them, where the layer is the head."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from dfl_lightning.bank.card import one_sentence
from dfl_lightning.bank.matmul import one_blas_thread
from dfl_lightning.bank.references import References
from dfl_lightning.engines.engine import Engine
from dfl_lightning.engines.float32 import float32_arithmetic
from dfl_lightning.utils.randomness.global_generators import no_global_draws
from dfl_lightning.utils.thread_pool import workers


def mean_inputs(engine: Engine, references: References, layer: str, split: str) -> Tensor:
    """Compute the mean input of a layer, over the samples and whatever else comes before its last dimension.

    Called by all processes alike, each of which does the owners of its own cohorts.

    Args:
        engine: has the models and the data; `EngineConfig.watched` names the layer.
        references: the models, one a client.
        layer: whose input, by the name in `watched`.
        split: the samples: `train` or `val`.

    Returns:
        float64 [own, features]; zeros for clients without a reference, and for those without samples.
    """
    bank, ranks, config = engine.bank, engine.bank.ranks, engine.config
    bank.join_device()
    mine = references.take(torch.nonzero(ranks.at_home(references.owners)).squeeze(1))
    pieces = [some for jobs in engine.by_cohort(mine.owners) for some in jobs.split(engine.predicted_at_once)]

    def work(jobs: Tensor) -> Tensor:
        with torch.no_grad():
            outputs = engine.outputs(mine.take(jobs), (split,), pool)
            features = [own[split].features[layer] for own in outputs]
            return torch.stack([values.flatten(0, -2).sum(0) / max(1, values[..., 0].numel()) for values in features])

    refusal = partial(engine.drew, "an evaluation")
    with (
        bank.timed("evaluate"),
        float32_arithmetic(config.tf32),
        bank.with_remote_rows(mine),
        ranks.together(),
        one_sentence(),
        no_global_draws(refusal),
        workers(engine.threads) as pool,
        one_blas_thread(),
    ):
        done = pool.map(work, pieces, between=engine.between_cohorts)
    width = -ranks.least(-max((found.shape[1] for found in done), default=0))  # a process may have no job
    rows = bank.stored("models")
    means = torch.zeros(len(rows), width, dtype=torch.float64, device=rows.device)
    for jobs, found in zip(pieces, done, strict=True):
        means[ranks.place[mine.owners[jobs]].to(rows.device)] = found.to(rows.device)
    return means
