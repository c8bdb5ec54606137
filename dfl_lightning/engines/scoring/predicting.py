"""Scores of predictions by a rule, which may use more than the class scores of one network."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from dfl_lightning.bank.card import one_sentence
from dfl_lightning.bank.matmul import one_blas_thread
from dfl_lightning.bank.references import References
from dfl_lightning.engines.calling.global_draws import refuse_global_draws
from dfl_lightning.engines.cohorts import by_cohort
from dfl_lightning.engines.config import EngineConfig
from dfl_lightning.engines.engine import EVALUATION_BATCH, Engine
from dfl_lightning.engines.float32 import float32_arithmetic
from dfl_lightning.engines.jobs import Evaluation
from dfl_lightning.engines.scoring.mean_scores import mean_scores, no_scores
from dfl_lightning.engines.scoring.prediction_rule import LabelledOutputs, Outputs, PredictionRule
from dfl_lightning.metrics import ClientMetric, metrics_of
from dfl_lightning.utils.errors import UserError
from dfl_lightning.utils.thread_pool import workers

SUM_IS_ONE = 1e-4
"""Largest allowed distance of the sum of a sample's probabilities from 1."""


def predict(
    engine: Engine, references: References, shares: Tensor, splits: Sequence[str]
) -> tuple[Tensor, dict[str, Evaluation]]:
    """Compute mean loss and metrics of the owners' predictions, which the rule of the engine's config makes.

    The probabilities that an owner predicts are the weighted sum of the rule's predictions with each of its models. The
    loss is the mean negative log-likelihood; metrics get the probabilities. All processes call this with the same
    arguments; each does the owners of its own cohorts. The groups of models that are computed together are a function
    of the references only.

    Args:
        engine: the engine with the models and the data.
        references: the models, those of an owner one after the other; owners are clients.
        shares: weights of the models, float64 [J]; those of an owner sum to 1.
        splits: the splits whose labels are predicted: `val`, `test`.

    Returns:
        The owners, long, and their scores by split.

    Raises:
        UserError: the rule does not return probabilities, or draws from a global generator.
    """
    bank, ranks, config = engine.bank, engine.bank.ranks, engine.config
    bank.join_device()
    owners, counts = references.owners.unique_consecutive(return_counts=True)
    owner_index = torch.arange(len(owners)).repeat_interleave(counts)  # For each model, index of its owner in `owners`.
    pieces = _pieces(engine, references.owners, counts)
    mine = ranks.at_home(references.owners)
    table = torch.full((len(splits), 1 + len(engine.metrics), len(owners)), math.nan, dtype=torch.float64)

    def work(jobs: Tensor) -> Tensor:
        with torch.no_grad():
            wanted = tuple(dict.fromkeys((*splits, *_rule(config).memory)))
            outputs = engine.outputs(references.take(jobs), wanted, pool)
            kept = _own_rows(engine, references.owners[jobs])
            return _piece_scores(engine, outputs, kept, references.owners[jobs], shares[jobs], splits)

    with bank.timed("evaluate"), float32_arithmetic(config.tf32):
        # As in other evaluations, a process holds few rows of other processes at a time.
        for wave in engine.waves(references.owners, pieces):
            begun = torch.zeros(len(references), dtype=torch.bool)
            begun[wave] = True
            here = [piece for piece in pieces if bool(begun[piece[0]] & mine[piece[0]])]
            jobs = references.take(wave[mine[wave]])
            with (
                bank.with_remote_rows(jobs),
                ranks.together(),
                one_sentence(),
                refuse_global_draws(config, engine.data, "an evaluation"),
            ):
                with workers(engine.threads) as pool, one_blas_thread():
                    done = pool.map(work, here, between=engine.between_cohorts)
                for piece, numbers in zip(here, done, strict=True):
                    table[:, :, owner_index[piece].unique_consecutive()] = numbers
    at_home = torch.nonzero(ranks.at_home(owners)).squeeze(1)
    lines = ranks.join(at_home, list(table.flatten(0, 1)))
    by_split = torch.stack(lines).view_as(table)
    return owners, {
        split: Evaluation(numbers[0], dict(zip(engine.metrics, numbers[1:], strict=True)))
        for split, numbers in zip(splits, by_split, strict=True)
    }


def _rule(config: EngineConfig) -> PredictionRule:
    rule = config.prediction
    assert rule is not None
    return rule


def _own_rows(engine: Engine, owners: Tensor) -> dict[str, Tensor]:
    """Return the columns of the owners' rows that the rule reads, float64 [j, columns] by row set.

    The owners' rows are in this process.
    """
    bank, wanted = engine.bank, _rule(engine.config).rows(engine.bank.layout)
    return {
        name: bank.materialise(References.rows(name, owners), start, stop).double()
        for name, (start, stop) in wanted.items()
    }


def _pieces(engine: Engine, owners: Tensor, counts: Tensor) -> list[Tensor]:
    """Divide the models into groups that are computed together, long [j] each.

    A group has all models of some owners of one cohort, and no more models than memory allows, or those of one owner.
    """
    ends = counts.cumsum(0)
    begins, pieces = ends - counts, []
    for cohort in by_cohort(owners[begins], engine.cohorts):
        some: list[Tensor] = []
        for index in cohort.tolist():
            jobs = torch.arange(int(begins[index]), int(ends[index]))
            if some and sum(map(len, some)) + len(jobs) > engine.predicted_at_once:
                pieces.append(torch.cat(some))
                some = []
            some.append(jobs)
        pieces.append(torch.cat(some))
    return pieces


def _piece_scores(
    engine: Engine,
    outputs: Sequence[Mapping[str, LabelledOutputs]],
    kept: Mapping[str, Tensor],
    owners: Tensor,
    shares: Tensor,
    splits: Sequence[str],
) -> Tensor:
    """Compute mean loss and metrics of the predictions of some models' owners, float64 [splits, 1 + metrics, owners].

    Args:
        engine: the engine.
        outputs: outputs of each of j models, by split.
        kept: columns of each model's owner that the rule reads, [j, columns] by row set.
        owners: owner of each model, long [j]; models of an owner are adjacent.
        shares: weight of each model in its owner's prediction, [j].
        splits: the splits whose labels are predicted.
    """
    config = engine.config
    metrics = metrics_of(config.metrics, outputs[0][splits[0]].labels.device)
    groups = torch.arange(len(owners)).split(owners.unique_consecutive(return_counts=True)[1].tolist())
    scores = []
    for split in splits:
        predicted = _predicted(config, outputs, kept, split)
        for jobs in map(Tensor.tolist, groups):
            weighted = torch.stack([float(shares[job]) * predicted[job] for job in jobs])
            scores.append(_scores(config, metrics, weighted.sum(0), outputs[jobs[0]][split].labels))
            engine.failures.add(int(owners[jobs[0]]), metrics)
    reported = 1 + len(config.task.numbers) + len(config.metrics)
    numbers = torch.stack(scores)[:, :reported].cpu()  # The host waits for a GPU only once, here.
    return numbers.view(len(splits), len(groups), -1).transpose(1, 2)


def _predicted(
    config: EngineConfig, outputs: Sequence[Mapping[str, LabelledOutputs]], kept: Mapping[str, Tensor], split: str
) -> list[Tensor]:
    """Predict with each model, float64 [B, C]; the rule is called once for all models with equally many samples."""
    rule = _rule(config)
    splits = tuple(dict.fromkeys((split, *rule.memory)))
    alike: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for job, by_split in enumerate(outputs):
        alike[tuple(len(by_split[name].labels) for name in splits)].append(job)
    predicted = [by_split[split].scores for by_split in outputs]  # They remain for owners without samples, [0, C].
    for (samples, *_), jobs in alike.items():
        if samples:
            together = {name: _stacked([outputs[job][name] for job in jobs]) for name in splits}
            rows = {name: values[jobs] for name, values in kept.items()}
            query = Outputs(together[split].scores, together[split].features, rows=rows)
            several = _checked(rule, query, {name: together[name] for name in rule.memory})
            for job, probabilities in zip(jobs, several, strict=True):
                predicted[job] = probabilities
    return predicted


def _stacked(several: Sequence[LabelledOutputs]) -> LabelledOutputs:
    """Stack the outputs of models with equally many samples along a leading dimension."""
    return LabelledOutputs(
        torch.stack([one.scores for one in several]),
        {name: torch.stack([one.features[name] for one in several]) for name in several[0].features},
        torch.stack([one.labels for one in several]),
    )


def _checked(rule: PredictionRule, query: Outputs, memory: Mapping[str, LabelledOutputs]) -> Tensor:
    """Predict by the rule, float64 [k, B, C], and raise if the result is not probabilities of the right shape."""
    answer = rule.predict(query, memory)
    name, wanted = type(rule).__name__, list(query.scores.shape)
    got = list(answer.shape) if isinstance(answer, Tensor) else type(answer).__name__
    if got != wanted:
        raise UserError(
            f"prediction {name} returns {got}; predict must return probabilities {wanted}, the shape of query.scores"
        )
    answer = answer.double()
    if bool((answer < 0).any()) or bool(((answer.sum(-1) - 1).abs() > SUM_IS_ONE).any()):
        raise UserError(
            f"prediction {name} returns numbers that are not probabilities: those of a sample must be 0 or more and "
            "sum to 1; query.scores.softmax(-1) turns scores into probabilities"
        )
    return answer


def _scores(config: EngineConfig, metrics: Sequence[ClientMetric], probabilities: Tensor, labels: Tensor) -> Tensor:
    """Compute mean negative log-likelihood (infinity instead of NaN), the task's numbers and metrics of one owner."""
    if not len(labels):
        return no_scores(config, probabilities.device, metrics)

    def shown(some: Tensor) -> Tensor:
        """Clip rounding errors above 1: torchmetrics takes larger numbers for logits and applies a softmax."""
        return some.clamp(max=1).to(config.dtype)

    batches = zip(probabilities.split(EVALUATION_BATCH), labels.split(EVALUATION_BATCH), strict=True)
    return mean_scores(config.task, _negative_log_likelihood, metrics, batches, shown)


def _negative_log_likelihood(probabilities: Tensor, labels: Tensor) -> Tensor:
    return -probabilities.gather(1, labels.unsqueeze(1)).log().mean()
