"""The scores of what clients predict where more than the class scores of one network decides."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial

import torch
from torch import Tensor
from torchmetrics import Metric

from dfl_lightning.bank.card import one_sentence
from dfl_lightning.bank.matmul import one_blas_thread
from dfl_lightning.bank.references import References
from dfl_lightning.engines.config import EngineConfig
from dfl_lightning.engines.engine import EVALUATION_BATCH, Engine, EvaluationPlan
from dfl_lightning.engines.float32 import float32_arithmetic
from dfl_lightning.engines.jobs import Evaluation
from dfl_lightning.engines.scoring.mean_scores import mean_scores, no_scores, own_metrics
from dfl_lightning.engines.scoring.prediction_rule import LabelledOutputs, Outputs, PredictionRule
from dfl_lightning.utils.errors import UserError
from dfl_lightning.utils.randomness.global_generators import no_global_draws
from dfl_lightning.utils.thread_pool import workers

SUM_IS_ONE = 1e-4
"""How far the probabilities of a sample may be from the sum 1."""


def predict(
    engine: Engine, references: References, shares: Tensor, splits: Sequence[str]
) -> tuple[Tensor, dict[str, Evaluation]]:
    """Mean loss and metrics of the owners' predictions, by the rule of the engine's config.

    The probabilities that an owner predicts are the weighted sum of what the rule makes of each of its models. The loss
    is the mean negative log-likelihood; metrics are given the probabilities. Called by all processes alike, each of
    which does the owners of its own cohorts. Which models are computed together is a function of the references only.

    Args:
        engine: has the models and the data.
        references: the models, those of an owner one after the other; owners are clients.
        shares: weights of the models, float64 [J]; those of an owner sum to 1.
        splits: what is predicted: `val`, `test`.

    Returns:
        The owners, long, and for each split their scores.

    Raises:
        UserError: the rule returns no probabilities, or draws from a global generator.
    """
    bank, ranks, config = engine.bank, engine.bank.ranks, engine.config
    bank.join_device()
    owners, counts = references.owners.unique_consecutive(return_counts=True)
    place = torch.arange(len(owners)).repeat_interleave(counts)  # of a model's owner
    pieces = _pieces(engine, references.owners, counts)
    mine = ranks.at_home(references.owners)
    found = torch.full((len(splits), 1 + len(engine.metrics), len(owners)), math.nan, dtype=torch.float64)

    def work(jobs: Tensor) -> Tensor:
        with torch.no_grad():
            wanted = tuple(dict.fromkeys((*splits, *_rule(config).memory)))
            outputs = engine.outputs(references.take(jobs), wanted, pool)
            kept = _own_rows(engine, references.owners[jobs])
            return _piece_scores(config, outputs, kept, place[jobs], shares[jobs], splits)

    refusal = partial(engine.drew, "an evaluation")
    with bank.timed("evaluate"), float32_arithmetic(config.tf32):
        # as for other evaluations, a process has few rows of others at a time
        for wave in engine.waves(EvaluationPlan(references.owners, pieces, [])):
            begun = torch.zeros(len(references), dtype=torch.bool)
            begun[wave] = True
            here = [piece for piece in pieces if bool(begun[piece[0]] & mine[piece[0]])]
            jobs = references.take(wave[mine[wave]])
            with bank.with_remote_rows(jobs), ranks.together(), one_sentence(), no_global_draws(refusal):
                with workers(engine.threads) as pool, one_blas_thread():
                    done = pool.map(work, here, between=engine.between_cohorts)
                for piece, numbers in zip(here, done, strict=True):
                    found[:, :, place[piece].unique_consecutive()] = numbers
    at_home = torch.nonzero(ranks.at_home(owners)).squeeze(1)
    lines = ranks.join(at_home, list(found.flatten(0, 1)))
    by_split = torch.stack(lines).view_as(found)
    return owners, {
        split: Evaluation(numbers[0], dict(zip(engine.metrics, numbers[1:], strict=True)))
        for split, numbers in zip(splits, by_split, strict=True)
    }


def _rule(config: EngineConfig) -> PredictionRule:
    rule = config.prediction
    assert rule is not None
    return rule


def _own_rows(engine: Engine, owners: Tensor) -> dict[str, Tensor]:
    """Return what the rule wants of the owners' row sets, float64 [j, columns] by row set; they are in this process."""
    bank, wanted = engine.bank, _rule(engine.config).rows(engine.bank.layout)
    return {
        name: bank.materialise(References.rows(name, owners), start, stop).double()
        for name, (start, stop) in wanted.items()
    }


def _pieces(engine: Engine, owners: Tensor, counts: Tensor) -> list[Tensor]:
    """Models that are worked on together, long each: of whole owners, all of one cohort, no more than there is room."""
    ends = counts.cumsum(0)
    begins, found = ends - counts, []
    for cohort in engine.by_cohort(owners[begins]):
        some: list[Tensor] = []
        for place in cohort.tolist():
            jobs = torch.arange(int(begins[place]), int(ends[place]))
            if some and sum(map(len, some)) + len(jobs) > engine.predicted_at_once:
                found.append(torch.cat(some))
                some = []
            some.append(jobs)
        found.append(torch.cat(some))
    return found


def _piece_scores(
    config: EngineConfig,
    outputs: Sequence[Mapping[str, LabelledOutputs]],
    kept: Mapping[str, Tensor],
    owners: Tensor,
    shares: Tensor,
    splits: Sequence[str],
) -> Tensor:
    """Mean loss and metrics of what the owners of some models predict, float64 [splits, 1 + metrics, owners].

    Args:
        config: the engine's.
        outputs: of each model, by split.
        kept: what the rule wants of the row sets of each model's owner, [j, columns].
        owners: of each model, long [j], in groups.
        shares: of each model, [j].
        splits: what is predicted.
    """
    metrics = own_metrics(config, outputs[0][splits[0]].labels.device)
    groups = torch.arange(len(owners)).split(owners.unique_consecutive(return_counts=True)[1].tolist())
    found = []
    for split in splits:
        predicted = _predicted(config, outputs, kept, split)
        for jobs in map(Tensor.tolist, groups):
            weighted = torch.stack([float(shares[job]) * predicted[job] for job in jobs])
            found.append(_scores(config, metrics, weighted.sum(0), outputs[jobs[0]][split].labels))
    reported = 1 + len(config.task.numbers) + len(config.metrics)
    numbers = torch.stack(found)[:, :reported].cpu()  # a GPU is waited for once
    return numbers.view(len(splits), len(groups), -1).transpose(1, 2)


def _predicted(
    config: EngineConfig, outputs: Sequence[Mapping[str, LabelledOutputs]], kept: Mapping[str, Tensor], split: str
) -> list[Tensor]:
    """Probabilities by each model on its own, float64 [B, C]; models with equally many samples go together."""
    rule = _rule(config)
    splits = tuple(dict.fromkeys((split, *rule.memory)))
    alike: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for job, own in enumerate(outputs):
        alike[tuple(len(own[name].labels) for name in splits)].append(job)
    found = [own[split].scores for own in outputs]  # of no samples
    for (samples, *_), jobs in alike.items():
        if samples:
            together = {name: _stacked([outputs[job][name] for job in jobs]) for name in splits}
            rows = {name: values[jobs] for name, values in kept.items()}
            query = Outputs(together[split].scores, together[split].features, rows=rows)
            several = _checked(rule, query, {name: together[name] for name in rule.memory})
            for job, probabilities in zip(jobs, several, strict=True):
                found[job] = probabilities
    return found


def _stacked(several: Sequence[LabelledOutputs]) -> LabelledOutputs:
    """The outputs of models with equally many samples, along a leading dimension."""
    return LabelledOutputs(
        torch.stack([own.scores for own in several]),
        {name: torch.stack([own.features[name] for own in several]) for name in several[0].features},
        torch.stack([own.labels for own in several]),
    )


def _checked(rule: PredictionRule, query: Outputs, memory: Mapping[str, LabelledOutputs]) -> Tensor:
    """What a rule predicts, float64 [k, B, C]."""
    found = rule.predict(query, memory)
    name, wanted = type(rule).__name__, list(query.scores.shape)
    got = list(found.shape) if isinstance(found, Tensor) else type(found).__name__
    if got != wanted:
        raise UserError(f"prediction {name} returns {got}; predict must return probabilities {wanted}, as query.scores")
    found = found.double()
    if bool((found < 0).any()) or bool(((found.sum(-1) - 1).abs() > SUM_IS_ONE).any()):  # NaN is a wrong answer
        raise UserError(
            f"prediction {name} returns numbers that are no probabilities: those of a sample must be 0 or more and sum "
            "to 1; scores become probabilities by query.scores.softmax(-1)"
        )
    return found


def _scores(config: EngineConfig, metrics: Sequence[Metric], probabilities: Tensor, labels: Tensor) -> Tensor:
    """Mean negative log-likelihood (infinite if it is no number), the task's numbers and metrics, float64 [1 + n]."""
    if not len(labels):
        return no_scores(config, probabilities.device)

    def shown(some: Tensor) -> Tensor:
        """Not above 1, were it by rounding: torchmetrics would take it for a network's scores, and apply a softmax."""
        return some.clamp(max=1).to(config.dtype)

    batches = zip(probabilities.split(EVALUATION_BATCH), labels.split(EVALUATION_BATCH), strict=True)
    return mean_scores(config.task, _negative_log_likelihood, metrics, batches, shown)


def _negative_log_likelihood(probabilities: Tensor, labels: Tensor) -> Tensor:
    return -probabilities.gather(1, labels.unsqueeze(1)).log().mean()
