"""Stacked engine, which computes all clients of a cohort in one network."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from dfl_lightning.bank.card import give_back
from dfl_lightning.bank.layout import Layout
from dfl_lightning.bank.matmul import one_blas_thread
from dfl_lightning.bank.references import References
from dfl_lightning.data import ClientData
from dfl_lightning.data.splits.index_lists import IndexLists
from dfl_lightning.distributed.communicator import Ranks
from dfl_lightning.engines.calling.adapted import prepare
from dfl_lightning.engines.cohorts import cohorts_on_gpus, plan_cohorts
from dfl_lightning.engines.config import EngineConfig
from dfl_lightning.engines.dropout_layers import mask_key
from dfl_lightning.engines.engine import ANY_SAMPLE, Engine
from dfl_lightning.engines.jobs import Evaluation, Targets, Trained, Training
from dfl_lightning.engines.local_work import Duration
from dfl_lightning.engines.optimizing.optimizer_memory import OptimizerMemory
from dfl_lightning.engines.optimizing.optimizers import ClientOptimizer
from dfl_lightning.engines.placing import set_mode
from dfl_lightning.engines.scoring.mean_scores import sums_of
from dfl_lightning.engines.scoring.prediction_rule import LabelledOutputs
from dfl_lightning.engines.stacked.cannot_stack import CannotStack
from dfl_lightning.engines.stacked.context import StackedContext
from dfl_lightning.engines.stacked.cost import Cost
from dfl_lightning.engines.stacked.evaluation import Scorer, Scores, SharedModels, SharedSamples, shared_models
from dfl_lightning.engines.stacked.gpu.autotune import StepTimer, choose_recorded, choose_unfolded
from dfl_lightning.engines.stacked.gpu.budget import Budget
from dfl_lightning.engines.stacked.gpu.cuda_graphs import CudaGraphs, Recorder, Recordings, can_record, obstacle
from dfl_lightning.engines.stacked.gpu.evaluation_ways import (
    EvaluationTimer,
    MeasuredWays,
    PassTime,
    Way,
    measure,
    ways_of,
)
from dfl_lightning.engines.stacked.gpu.footprint import footprint_of
from dfl_lightning.engines.stacked.loss import StackedLoss
from dfl_lightning.engines.stacked.networks.merged import MergedNetwork
from dfl_lightning.engines.stacked.networks.traced import StackedNetwork
from dfl_lightning.engines.stacked.parameters import row_of
from dfl_lightning.engines.stacked.training import StackedJob
from dfl_lightning.engines.trials import network_trial, optimizer_trial
from dfl_lightning.engines.trials.trial import FEWEST, TRAINING_OPERATIONS, Trial, examples, try_plain
from dfl_lightning.utils.code.frozen import stand_ins
from dfl_lightning.utils.code.module_copies import copy_of
from dfl_lightning.utils.errors import is_out_of_memory, reason
from dfl_lightning.utils.randomness.random_streams import stream_seed
from dfl_lightning.utils.thread_pool import Workers, workers

TRIAL_OPERATIONS = 2e7
"""Most operations of a forward pass in the trial of the stacked network, in float64: a twentieth of a second."""

GLOBAL_PIECE = 2000
"""Number of samples of the global test set that a thread scores at a time."""


Item = SharedSamples | SharedModels
"""Part of an evaluation that a thread does at a time."""


class StackedEngine(Engine):
    """Engine that trains all clients of a cohort at once.

    Each cohort's rows are copied into a staging area, parameter by parameter, trained there from the first to the last
    step, and copied back. The numbers equal those of the loop engine up to the rounding of sums in another order.

    Args:
        config: see `EngineConfig`.
        layout: the columns of a row.
        data: the clients' resident data.
        trial: result of the trial of the network and the loss; None: the engine tries them.

    Raises:
        CannotStack: the network, the objective or the optimizer needs the loop engine.
    """

    name = "stacked"

    def __init__(self, config: EngineConfig, layout: Layout, data: ClientData, trial: Trial | None = None) -> None:
        trial = trial or try_plain(config, data)
        config = trial.config
        config = replace(config, base=layout.base)
        instead = stand_ins(config.network, layout.base)
        network = copy_of(config.network, instead).to(data.images.device, config.dtype)
        prepare(network, config.calling)
        phases = config.objective.phases(layout, Duration(1), 0)
        for phase in phases:
            if not phase.objective.stackable:
                raise CannotStack(f"objective {type(phase.objective).__name__} does not declare stackable = True")
        optimizer = ClientOptimizer(config.optimizer, config.network)
        optimizer_trial.try_out(optimizer, config.network)
        if trial.couples_evaluation:
            raise CannotStack(
                "its samples interact in evaluation: scores depend on the rest of a batch, or its order or size"
            )
        count = min(max(3, config.batch_size), max(3, int(TRIAL_OPERATIONS // max(1, trial.operations))))
        example, _ = examples(data, count, config.dtype)
        stacked, note = _stacked(network, config, trial, example)
        states = optimizer.states * (2 if config.keeps_optimizer else 1)  # The first step has kept states and copies.
        self.cost = Cost.measure(network, stacked, example[:2], config, layout, states)
        fused = optimizer.fused_on(data.images.device)
        self._context = StackedContext(config, layout, data, stacked, StackedLoss(config.loss), fused)
        self._scorer = Scorer(self._context, self.cost.activations)
        super().__init__(config, layout, data)
        self.details |= {"trial": note} if note else {}
        self.recordings: Recordings | None = None
        self.budget: Budget | None = None
        self._recorder: Recorder | None = None
        self._decided: dict[str, Any] = {}  # What was measured, in plain values for a checkpoint.
        if data.images.is_cuda:
            # Recorded steps need a static model with its states, and a copy of the model.
            recorded = 2 + self.cost.states if config.cuda_graphs else 0
            row_sets = {name for phase in phases for name in phase.objective.row_sets}
            rows = 1 + len(row_sets) + recorded
            footprint = footprint_of(network, self.cost, example, config, rows, data.labels[:1], type(stacked))
            self.budget = Budget(footprint, config.room)
            of_sample = {name: -(-numbers // config.largest_batch) for name, numbers in footprint.patches.items()}
            self._scorer.keep_within(config.room, of_sample)
            self.all_at_once(CudaGraphs() if config.cuda_graphs and can_record() else None)
            if config.cuda_graphs and not can_record():  # With true instead of auto, the trainer has refused it.
                self.details["graphs"] = f"not recorded: torch {torch.__version__} has no torch.cuda.MemPool"
        else:
            self.cohorts = plan_cohorts(self.steps, self.cost.narrowest, self.cost.widest, config.cohorts)

    def all_at_once(self, recorder: Recorder | None = None) -> None:
        """Make as few cohorts as memory allows, as for a GPU.

        Args:
            recorder: recorder of steps; None: steps are not recorded.
        """
        affordable = max(FEWEST, int(TRAINING_OPERATIONS // max(1, self.cost.operations)))
        example, _ = examples(self.data, min(max(3, self.config.batch_size), affordable), self.config.dtype)
        network_trial.try_masks(self._context.network, example, partial(_mask_key, self.config.seed))
        self._recorder = recorder
        self._cut(self.config.cohorts)

    def _cut(self, fewest: int | None) -> None:
        """Divide the clients into at least `fewest` cohorts, and allocate the memory of recorded steps."""
        self.recordings = None
        widest = None if self.budget is None else self.budget.widest
        self.cohorts = cohorts_on_gpus(self.steps, self.config.processes, widest, fewest)
        self._describe_memory()
        if self._recorder is None:
            return
        why = obstacle(self._context, examples(self.data, 2, self.config.dtype)[0])
        self.details["graphs"] = f"not recorded: {why}" if why else "recorded"
        if why:
            return
        try:
            self.recordings = Recordings(self._context, max(map(len, self.cohorts)), self._recorder)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            self.details["graphs"] = "not recorded: there is not enough memory for static models"
            give_back(self.data.images.device)

    @property
    def threads(self) -> int:
        """Number of cohorts that train at once: one when steps are recorded, since all cohorts share their memory."""
        return 1 if self.recordings is not None else super().threads

    @property
    def cohort_bytes(self) -> int:
        """Bytes of models, gradients, optimizer states and activations of the cohorts that are trained at once."""
        if self.budget is not None:
            return max(map(len, self.cohorts)) * self.budget.footprint.bytes(self._context.network.unfolded)
        largest = sorted((len(cohort) for cohort in self.cohorts), reverse=True)[: self.threads]
        return sum(largest) * self.cost.bytes_with(self.config.largest_batch)

    @property
    def decisions(self) -> dict[str, Any]:
        """Decisions that were measured on a GPU and hold for the rest of the run, also on another GPU."""
        if self.budget is None:
            return {}
        return {"cohorts": len(self.cohorts), "processes": self.config.processes, **self._decided}

    def restore_decisions(self, decisions: Mapping[str, Any]) -> None:
        """Restore the decisions of an earlier part of the run, if memory allows; see `Engine.restore_decisions`."""
        budget, config = self.budget, self.config
        if budget is None:
            return
        if decisions.get("processes") == config.processes and decisions["cohorts"] > len(self.cohorts):
            self._cut(decisions["cohorts"])
        if "unfolded" in decisions:
            names = frozenset(decisions["unfolded"])
            fits = budget.allows(names, max(map(len, self.cohorts)))
            self._decide(names if fits else frozenset(), decisions.get("recorded"), decisions.get("evaluation", []))

    def tune_to_device(self, ranks: Ranks) -> None:
        """Time steps and evaluations on a GPU, if it has not been done, and decide; see `Engine.tune_to_device`."""
        if self.budget is None or self._decided:
            return
        network, names = self._context.network, self._context.network.can_be_unfolded()
        recorded, automatic = self.recordings is not None, self.config.cuda_graphs == "auto"
        with ranks.together():
            if ranks.rank == 0 and (names or (recorded and automatic)):
                recorded = self._time_steps(recorded, automatic)
        found = torch.tensor([int(name in network.unfolded) for name in names] + [int(recorded)])
        found = ranks.from_rank(0, found) if ranks.count > 1 else found
        *flags, recorded = map(bool, found.tolist())
        unfolded = frozenset(name for name, wanted in zip(names, flags, strict=True) if wanted)
        ways = ways_of(self._scorer.width, unfolded)
        lines = torch.zeros(len(ways), 2, dtype=torch.float64)
        with ranks.together():
            if ranks.rank == 0:
                timed = measure(ways, EvaluationTimer(self._context), self._scorer.length_of)
                lines = torch.tensor([[line.fixed, line.sample] for line in timed.lines], dtype=torch.float64)
        lines = ranks.from_rank(0, lines) if ranks.count > 1 else lines
        evaluation = [[way.width, sorted(way.unfolded), *line] for way, line in zip(ways, lines.tolist(), strict=True)]
        self._decide(unfolded, recorded if automatic else None, evaluation)

    def _time_steps(self, recorded: bool, automatic: bool) -> bool:
        """Time steps, set the convolutions that the network unfolds, and return True if steps are to be recorded."""
        widest = max(map(len, self.cohorts))
        network, budget = self._context.network, self.budget
        assert budget is not None
        timer = StepTimer(self._context, widest, self._recorder if recorded else None)

        def allowed(names: frozenset[str]) -> bool:
            return budget.allows(names, widest)

        if recorded and automatic:
            return choose_recorded(network, StepTimer(self._context, widest), timer, allowed)
        choose_unfolded(network, timer, allowed)
        return recorded

    def _decide(self, unfolded: frozenset[str], recorded: bool | None, evaluation: Sequence[Any]) -> None:
        """Apply what was measured.

        Args:
            unfolded: names of the convolutions that are computed by patches.
            recorded: True if steps are recorded; None: the config says it.
            evaluation: width, unfolded convolutions and both parts of the time of each way of evaluating.
        """
        self._decided = {"unfolded": sorted(unfolded), "evaluation": list(evaluation)}
        self._context.network.unfolded = unfolded
        self.details |= {"unfolded": sorted(unfolded)} if unfolded else {}
        if recorded is not None:
            self._decided["recorded"] = recorded
            if self.recordings is not None and not recorded:
                self.recordings, self._recorder = None, None
                self.details["graphs"] = "not recorded: replays were not faster"
                give_back(self.data.images.device)
        fitting = [way for way in evaluation if way[0] <= self._scorer.width]  # A resumed run may have less memory.
        ways = [Way(width, frozenset(names)) for width, names, *_ in fitting]
        lines = [PassTime(fixed, sample) for *_, fixed, sample in fitting]
        self._scorer.measured = MeasuredWays(ways, lines) if ways else None
        self._describe_memory()

    def out_of_memory(self, error: BaseException) -> str:
        """Say that memory is full, and name the remedy, narrower cohorts if possible; see `Engine.out_of_memory`."""
        widest, processes = max(map(len, self.cohorts)), self.config.processes
        remedy = f"use smaller ones: --trainer.cohorts {min(2 * len(self.cohorts), self.data.num_clients)}"
        if widest == 1 or len(self.cohorts) >= self.data.num_clients // processes * processes:
            remedy = "lower model.batch_size or use a smaller network"
        where = "the GPU" if self.data.images.is_cuda else "this machine"
        return (
            f"{where} ran out of memory with {len(self.cohorts)} cohort{'s' * (len(self.cohorts) > 1)} of up to "
            f"{widest} clients ({reason(error)}); {remedy}"
        )

    def _describe_memory(self) -> None:
        if self.budget is not None:
            widest = max(map(len, self.cohorts))
            self.details["GPU memory"] = self.budget.describe(self._context.network.unfolded, widest)

    def train_cohort(self, references: References, training: Training, targets: Targets, pool: Workers) -> Trained:
        """Train the jobs of one cohort at once; see `Engine.train_cohort`."""
        bank, owners = self.bank, references.owners.tolist()
        steps = self.batches(training.batch_size or self.config.batch_size)
        alike = self._counts_of(training.memory, references.owners)
        order = torch.tensor(sorted(range(len(owners)), key=lambda job: (-steps[owners[job]], alike[job], owners[job])))
        recordings = None if training.gradients or training.memory is not None else self.recordings
        job = StackedJob(self._context, bank, references.take(order), training, pool, recordings)
        if training.gradients:
            rows = row_of(self.layout, job.mean_gradients())
            target = targets["models"]
            target.index_copy_(0, bank.ranks.place[references.owners[order]].to(target.device), rows)
            finite = rows.isfinite().all(1)
        else:
            models = job.run()
            if recordings is not None and recordings.failure:
                self.details["graphs"] = f"not recorded: {recordings.failure}"
                self.recordings = None
            for memory in job.memories.values():
                models |= memory.stagings
            for name, staging in models.items():
                staging.copy_into(targets[name], bank.ranks.place[references.owners[order]])
            ended = [staging.finite() for staging in models.values()]
            ended += [memory.finite().to(ended[0].device) for memory in job.memories.values()]
            finite = torch.stack([*ended, *(values.isfinite() for values in job.numbers.values())]).all(0)
        back = torch.argsort(order)
        losses = torch.where(job.samples > 0, job.losses / job.weights, float("nan"))
        changed = {name: bank.number(name)[references.owners[order]] for name in training.changed_numbers} | job.numbers
        for memory in job.memories.values():
            changed |= memory.numbers
        numbers = {name: values.double().cpu()[back] for name, values in changed.items()}
        return Trained(losses.cpu()[back], job.samples.cpu()[back], finite.cpu()[back], numbers)

    def _counts_of(self, memory: OptimizerMemory | None, owners: Tensor) -> list[list[float]]:
        """Return the single numbers of each owner's kept optimizer states; owners with equal ones become neighbours."""
        if memory is None or not len(owners):
            return [[] for _ in owners]
        return torch.stack([self.bank.number(name)[owners] for name in memory.numbers], 1).tolist()

    def score(self, references: References, split: str) -> Evaluation:
        """Score the jobs, owner by owner or model by model; see `Engine.score`.

        Model by model, a job is scored in the cohort of the client whose row it reads (`EvaluationPlan.home`), so that
        each row is copied once.
        """
        bank, items = self.bank, self._items(references, split)
        set_mode(self.config.loss, False)

        def work(item: Item) -> list[Scores]:
            with torch.no_grad():
                if isinstance(item, SharedSamples):
                    return [self._scorer.score_together(bank, references, item, pool)]
                return self._scorer.score(bank, references, item, pool)

        with workers(self.threads) as pool, one_blas_thread():
            results = pool.map(work, items, between=self.between_cohorts)
        task = self.config.task
        samples = torch.zeros(len(references), dtype=torch.long)
        weights, losses, *others = torch.zeros(2 + len(task.names), len(references), dtype=torch.float64)
        statistics = dict(zip(task.names, others, strict=True))
        metrics = {name: torch.full_like(losses, math.nan) for name in self.config.metrics}
        for scores in chain.from_iterable(results):  # Without metrics, the global test set has several pieces.
            samples.index_add_(0, scores.jobs, scores.samples)
            weights.index_add_(0, scores.jobs, scores.weights.double())
            losses.index_add_(0, scores.jobs, sums_of(scores.losses, scores.weights))
            for name, sums in statistics.items():
                sums.index_add_(0, scores.jobs, sums_of(scores.statistics[name], scores.weights))
            for name, values in metrics.items():
                values[scores.jobs] = scores.metrics[name]
            owners = references.owners
            self.failures.update({(name, int(owners[job])): why for (name, job), why in scores.failures.items()})
        losses = losses / weights  # NaN for jobs without samples.
        losses = losses.masked_fill(losses.isnan() & (samples > 0), math.inf)
        means = {name: sums / weights for name, sums in statistics.items()}
        numbers = task.finish(means)
        return Evaluation(losses, {**{name: numbers[name] for name in task.numbers}, **metrics}, weights, means)

    @property
    def predicted_at_once(self) -> int:
        """Number of models that the scorer computes at once."""
        return self._scorer.width

    def outputs(self, references: References, splits: Sequence[str], pool: Workers) -> list[dict[str, LabelledOutputs]]:
        """Compute the models' outputs on their owners' samples, several models at once; see `Engine.outputs`."""
        of_models: list[dict[str, LabelledOutputs]] = [{} for _ in range(len(references))]
        names = self.config.predicted_features
        for split in splits:
            parts = [self.samples(owner, split) for owner in references.owners.tolist()]
            some = [part if len(part) else ANY_SAMPLE for part in parts]  # A network may fail on an empty batch.
            for by_split, part, numbers in zip(
                of_models, parts, self._scorer.outputs(self.bank, references, some, pool), strict=True
            ):
                labels, scores, *features = (values[: len(part)] for values in numbers)
                by_split[split] = LabelledOutputs(scores, dict(zip(names, features, strict=True)), labels)
        return of_models

    def _items(self, references: References, split: str) -> list[Item]:
        """Divide an evaluation for threads: jobs on the same samples, models of a cohort, pieces of the global test."""
        owners, plan = references.owners, self.plan(references, split)
        parts: IndexLists = getattr(self.data, split)
        items: list[Item] = [
            SharedSamples(jobs, self.samples(int(owners[jobs[0]]), split)) for jobs in plan.shared_samples
        ]
        for jobs in plan.others:
            if int(owners[jobs[0]]) < 0:
                items += [_alone(job, piece) for job in jobs for piece in self._pieces(self.samples(-1, split))]
                continue
            sizes = parts.counts[owners[jobs]]
            items.append(shared_models(jobs, plan.read[jobs], sizes, lambda some: parts.together(owners[some])))
        return sorted((item for item in items if len(item)), key=len, reverse=True)

    def shared_samples(self, references: References, split: str) -> list[Tensor]:
        """Return groups of jobs of the same owner if this is faster; none on a GPU, where it has not been measured."""
        if self.data.images.device.type != "cpu":
            return []
        sizes, owners = self.data.sizes(split), references.owners
        of_clients = torch.nonzero(owners >= 0).squeeze(1)  # The global test set is cut into pieces instead.
        several = self._scorer.pays(sizes) & (torch.bincount(owners[of_clients], minlength=len(sizes)) > 1)
        by_owner: dict[int, list[int]] = defaultdict(list)
        for job in of_clients[several[owners[of_clients]]].tolist():
            by_owner[int(owners[job])].append(job)
        return [
            group for owner, jobs in by_owner.items() for group in self._scorer.shared_samples(jobs, int(sizes[owner]))
        ]

    @property
    def composed_at_once(self) -> int:
        """Number of models that the scorer computes at once, but at least that of other engines."""
        return max(super().composed_at_once, self._scorer.width)

    def _pieces(self, samples: Tensor) -> list[Tensor]:
        """Cut the samples of the global test set into pieces; into one if there are metrics, which need all samples."""
        if not len(samples):
            return []
        return [samples] if self.config.metrics else list(samples.split(GLOBAL_PIECE))


def _stacked(network: nn.Module, config: EngineConfig, trial: Trial, example: Tensor) -> tuple[StackedNetwork, str]:
    """Make the stacked network, traced or else merged, and try it.

    Args:
        network: the network for one client, after `prepare`.
        config: see `EngineConfig`.
        trial: result of the trial of the network.
        example: some of the data's inputs, [B, ...], in the run's precision.

    Returns:
        The network, and the limit of its trial in a few words; see `network_trial.try_out`.

    Raises:
        CannotStack: neither form can be stacked.
    """
    draws = partial(_mask_key, config.seed)
    obstacles = []
    for form in (StackedNetwork, MergedNetwork):
        try:
            stacked = form(network, config.features, trial.norms, config.base)
            note = network_trial.try_out(stacked, example, draws, trial.couples_training)
            if form is MergedNetwork and stacked.couples_samples:
                raise CannotStack("its samples interact in training")
            if config.reduced is not None:
                arithmetic = config.arithmetic(example.device)
                network_trial.try_reduced(stacked, example, draws, arithmetic)
        except CannotStack as obstacle:
            obstacles.append(obstacle)
        else:
            return stacked, note
    traced, merged = obstacles
    if str(traced) == str(merged):
        raise traced
    raise CannotStack(f"{traced}; as one batch of all clients, {merged}", by_failing=traced.by_failing)


def _alone(job: Tensor, samples: Tensor) -> SharedModels:
    """Make an item of one job, a scalar index, and the samples, long, on which it is scored."""
    return SharedModels(job[None], torch.tensor([len(samples)]), torch.ones(1, dtype=torch.long), lambda _: samples)


def _mask_key(seed: int, client: int) -> Tensor:
    """Return the key of a client's dropout masks in trials."""
    return mask_key(stream_seed(seed, "try out", client))
