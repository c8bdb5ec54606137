"""The set-up of a run, in this order: data, topology, network and layout, federation, engine, bank."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Protocol

import torch
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from torch import Tensor, nn
from torchmetrics import Metric

from dfl_lightning.bank import card
from dfl_lightning.bank.bank import Bank
from dfl_lightning.bank.layout import Layout
from dfl_lightning.bank.patterns import without_norms
from dfl_lightning.build_checks import (
    check_phases,
    load_run_topology,
    refuse_broken_start,
    refuse_large_rows,
    refuse_missing_data,
    refuse_other_losses,
    refuse_other_weights,
    refuse_several_servers,
    refuse_without_classes,
    with_neighbours,
)
from dfl_lightning.callbacks.base import Aggregation, Outgoing, Prediction, Selection
from dfl_lightning.data import ClientData
from dfl_lightning.data.client_data import target_type
from dfl_lightning.distributed.communicator import Ranks, owners_of
from dfl_lightning.distributed.connection import is_connected
from dfl_lightning.engines.calling.adapted import Calling
from dfl_lightning.engines.config import EngineConfig
from dfl_lightning.engines.engine import Engine
from dfl_lightning.engines.factory import make_engine
from dfl_lightning.engines.optimizing.optimizer_memory import OptimizerMemory
from dfl_lightning.engines.optimizing.optimizers import ClientOptimizer
from dfl_lightning.engines.optimizing.schedule import Schedule
from dfl_lightning.engines.trials.constant_buffers import constant_buffers
from dfl_lightning.metrics import about_clients
from dfl_lightning.models.fitting import fit_to_data
from dfl_lightning.models.init import fresh_parameters
from dfl_lightning.models.start_file import read_start
from dfl_lightning.objectives import Duration, Objective, Phase
from dfl_lightning.round.federation import Federation, LocalTraining, agreeing_clusters
from dfl_lightning.round.joining import refuse_joining
from dfl_lightning.round.run.parts import RunParts
from dfl_lightning.round.run.per_client import client_numbers
from dfl_lightning.tasks import Task, default_task
from dfl_lightning.terminal.framing import announce_set_up
from dfl_lightning.topology import own_class
from dfl_lightning.utils.code.frozen import tensors_of
from dfl_lightning.utils.errors import UserError
from dfl_lightning.utils.memory import size
from dfl_lightning.utils.randomness.global_generators import no_global_draws

if TYPE_CHECKING:
    from dfl_lightning.trainer import DFLTrainer


class ModuleOptions(Protocol):
    """The options of the network and local training; see `DFLModule`."""

    init: str
    init_skip: list[str]
    batch_size: int | Literal["full"]
    batch_growth: int | None
    was_compiled: bool
    shared_patterns: list[str]
    personal: Literal["norms"] | None
    optimizer_factory: OptimizerCallable
    scheduler_factory: LRSchedulerCallable | None
    finetune_epochs: int
    loss: Callable[[Tensor, Tensor], Tensor] | None
    chosen_task: Task | None
    metrics: dict[str, Metric]
    objective: Objective
    keep_optimizer: bool
    per_client: Any

    @property
    def network(self) -> nn.Module:
        """The plain network."""

    @property
    def duration(self) -> Duration:
        """The length of a client's local training in a round."""


def build_run(module: ModuleOptions, trainer: DFLTrainer, stage: str, former: RunParts | None) -> RunParts:
    """Build a run, and check before any training that its parts fit together.

    Do not call this in `configure_model`: in that hook Lightning intercepts every call of torch, which takes as long as
    the trial steps of a small network, and creates every new tensor on the run's device.

    Args:
        module: options of the network and local training.
        trainer: topology, policies, precision, device and processes.
        stage: Lightning's stage: `fit`, `validate` or `test`.
        former: parts of an earlier run of the module, which this run continues with the same bank; None: a new run.

    Raises:
        UserError: two parts do not fit together; names them and the remedy.
    """
    data, seed = trainer.datamodule.clients, run_seed()
    trainer.datamodule.check_range(dtype_of_rows(trainer))
    topology = load_run_topology(trainer, data, seed)
    numbers = client_numbers(module.per_client, data.num_clients, topology.labels)
    policies = trainer.settle_policies()
    topology = with_neighbours(topology, numbers, trainer)
    task = _task(module.chosen_task, data)
    loss = task.mean_loss() if module.loss is None else module.loss
    refuse_without_classes(policies, module.objective, task)
    refuse_other_losses(trainer.policy(Prediction), loss)
    refuse_several_servers(topology, trainer.policy(Selection))
    refuse_other_weights(topology, trainer.policy(Aggregation))
    clusters = agreeing_clusters(data.clusters, topology)

    shape, calling = fit_to_data(module.network, data, loss, module.metrics, seed, task)
    if module.metrics:
        remarks = about_clients(module.metrics, _targets_of_clients(data), task, shape)
        trainer.remarks += [remark for remark in remarks if remark not in trainer.remarks]
    dtype = dtype_of_rows(trainer)
    shared = module.shared_patterns
    shared = without_norms(module.network, shared) if module.personal else shared
    layout = Layout(module.network, shared, constant_buffers(module.network, data, dtype, seed, calling))
    load_base(layout, module.network, module.init, module.init_skip, dtype, trainer.strategy.root_device)
    announce_set_up(trainer.callbacks, module.network, layout.num_parameters)  # type: ignore[attr-defined]
    phases = module.objective.phases(layout, module.duration, 0)
    optimizer, schedule, scheduled = _optimization(module, trainer, stage, layout, phases)

    rounds = trainer.max_epochs
    federation = Federation(
        data=data,
        topology=topology,
        network=module.network,
        layout=layout,
        clusters=clusters,
        seed=seed,
        init=module.init,
        planned_rounds=rounds if rounds is not None and rounds >= 0 else None,
        objective=module.objective,
        local=LocalTraining(
            duration=module.duration,
            batch_size=_batch_size(module.batch_size, data),
            optimizer=optimizer,
            scheduled=scheduled,
            clipped=trainer.clip_norm is not None or trainer.clip_value is not None,
            memory=_optimizer_memory(module.keep_optimizer, optimizer, layout, phases, trainer.remarks),
            rates=None if numbers is None else numbers.rates(float(optimizer.hyperparameters[0]["lr"])),
            durations=None if numbers is None else numbers.durations(module.duration),
            batch_growth=module.batch_growth or 0,
            largest_client=_batch_size("full", data),
        ),
        policies=policies,
        task=task,
        remarks=trainer.remarks,
        per_client=None if numbers is None else numbers.identity(),
    )
    check_phases(federation, phases)
    federation.start()
    refuse_joining(federation)
    if former is not None and stage == "fit":
        begun = former.federation.horizon
        federation.horizon.continue_from(begun.rounds, sorted(begun.readers), "a second fit")
    refuse_missing_data(trainer, data, task, stage, module.metrics)

    if former is None:
        # This comes before the engine is built, since the engine tries the network with these parameters.
        refuse_broken_start(federation, _first_models(federation, [0], dtype_of_rows(trainer), module.init_skip))
    of_engine = loss if module.loss is None else task.users_loss(loss)
    if module.was_compiled:
        remark = (
            f"model.network {type(module.network).__name__} is compiled (torch.compile), which is not used: engines "
            "compute copies of the network in their own way"
        )
        trainer.remarks += [] if remark in trainer.remarks else [remark]
    if calling.foreign:
        remark = (
            f"model.network {type(module.network).__name__} draws by {calling.foreign} from torch's global generator, "
            "which is seeded for each client and step; forward passes of training wait for each other"
        )
        trainer.remarks += [] if remark in trainer.remarks else [remark]
    if former is None and trainer.strategy.root_device.type == "cpu":
        refuse_large_rows(federation, len(_row_sets(federation, phases)), dtype_of_rows(trainer), trainer.world_size)
    engine = _engine(module, trainer, federation, of_engine, phases, former, calling, stage)
    if former is None:
        bank = _bank(trainer, federation, phases, engine, module.init_skip)
    else:
        bank = _former_bank(trainer, federation, phases, engine, former)
    engine.attach(bank)
    federation.bank, federation.engine = bank, engine
    return RunParts(federation, phases, optimizer, schedule, scheduled, engine, bank)


def load_base(
    layout: Layout, network: nn.Module, init: str, skip: Sequence[str], dtype: torch.dtype, device: torch.device
) -> None:
    """Set the values that all clients share: those of the network, or of the file of `model.init`.

    Args:
        layout: the columns of a row, and what has none.
        network: the network with its first values.
        init: `common`, `independent` or a file.
        skip: patterns of names that are not read from the file.
        dtype: type of the run's models.
        device: the run's device.

    Raises:
        UserError: the file does not have these values, or not as numbers.
    """
    if init in ("common", "independent") or not layout.common:
        layout.load_base(tensors_of(network), dtype, device)
        return
    state, _ = _start_in_file(layout, network, init, skip)
    try:
        layout.load_base(state, dtype, device)
    except UserError as error:
        raise UserError(f"model.init={init}: {error}") from None


def _start_in_file(
    layout: Layout, network: nn.Module, init: str, skip: Sequence[str]
) -> tuple[dict[str, Tensor], list[str]]:
    """Read the first values of all parameters and buffers from a file; return them with remarks."""
    in_files = network.state_dict()
    names = [*(entry.name for entry in layout.entries), *(entry.name for entry in layout.common)]
    return read_start(init, {name: in_files[name] for name in names if name in in_files}, skip)


def run_seed() -> int:
    """Return the run's seed: the argument of `seed_everything`, or 0 if that was not called."""
    return int(os.environ.get("PL_GLOBAL_SEED", 0))


def dtype_of_rows(trainer: DFLTrainer) -> torch.dtype:
    """Return the floating-point type of the clients' models."""
    return torch.float64 if trainer.precision == "64-true" else torch.float32


def _task(chosen: Task | None, data: ClientData) -> Task:
    """Return the chosen task, or the default one for the data's targets.

    Raises:
        UserError: the chosen task does not fit the targets, or no task is chosen and the targets have no default task.
    """
    task = default_task(data.labels, data.num_classes) if chosen is None else chosen
    task.output_shape(data.labels, data.num_classes)
    return task.of_targets(data.labels, None if data.target_scale is None else tuple(data.target_scale.tolist()))


def _targets_of_clients(data: ClientData) -> dict[str, dict[int, Tensor]]:
    """Return the targets of each client with validation or test data, by split and client."""
    parts = {"val": data.val, "test": data.test}
    targets = data.labels.cpu()
    targets = targets.to(target_type(targets, torch.float32))
    return {
        split: {client: targets[part] for client, part in enumerate(indices) if len(part)}
        for split, indices in parts.items()
    }


def parts_of_graphs(trainer: DFLTrainer) -> tuple[Any, ...]:
    """Return the run's topology, and the class of a user's that it names, whose code is part of the run."""
    return trainer.topology, own_class(trainer.topology)


# --- optimizer and schedule ---------------------------------------------------------------------------------------
def _optimization(
    module: ModuleOptions, trainer: DFLTrainer, stage: str, layout: Layout, phases: tuple[Phase, ...]
) -> tuple[ClientOptimizer, Schedule, tuple[str, ...]]:
    """Create the optimizer and the schedule, and check all rounds so that neither fails in the middle of a run.

    Returns:
        Optimizer, schedule, and names of the options in addition to `lr` that change from round to round.
    """
    optimizer = ClientOptimizer(module.optimizer_factory, module.network)
    entries = [entry for entry in layout.entries if not entry.is_buffer]
    optimizer.check(
        [
            [place for place, entry in enumerate(entries) if entry.trainable and phase.columns.holds(entry)]
            for phase in phases
        ]
    )
    if optimizer.capturable and trainer.strategy.root_device.type == "cpu":
        remark = f"model.optimizer {optimizer.name}: capturable=True is for GPUs, and is ignored on a CPU"
        trainer.remarks += [] if remark in trainer.remarks else [remark]
    schedule = Schedule(optimizer, module.scheduler_factory)
    rounds = (trainer.max_epochs or 0) if stage == "fit" else 0
    last = rounds - (not module.finetune_epochs)  # fine-tuning before an evaluation uses the next round's options
    with no_global_draws(partial(schedule_draws, schedule.scheduler)):
        return optimizer, schedule, schedule.check(max(0, last))


def _optimizer_memory(
    wanted: bool, optimizer: ClientOptimizer, layout: Layout, phases: tuple[Phase, ...], remarks: list[str]
) -> OptimizerMemory | None:
    """Return the row sets that keep the optimizers' states; None if optimizers begin anew or have no state."""
    if not wanted:
        return None
    models = dict.fromkeys(name for phase in phases for name in phase.objective.optimized)
    count = sum(not entry.is_buffer for entry in layout.entries)
    memory = OptimizerMemory.of(optimizer, list(models), count)
    remark = f"model.keep_optimizer: {optimizer.name} with these options remembers nothing, so there is nothing to keep"
    if memory is None and remark not in remarks:
        remarks.append(remark)
    return memory


def schedule_draws(scheduler: object, generators: str) -> str:
    """Describe the mistake of a schedule that draws random numbers.

    Args:
        scheduler: the user's schedule.
        generators: names of the generators that it has drawn from.
    """
    return (
        f"model.lr_scheduler {type(scheduler).__name__} draws from {generators}, so that a resumed run would differ; "
        "a schedule must be a function of the round number only"
    )


def _batch_size(wanted: int | str, data: ClientData) -> int:
    """Return the number of samples in a batch, at most those of the largest client: engines allocate memory for it."""
    largest = max(1, int(data.sizes("train").max()))
    return min(wanted, largest) if isinstance(wanted, int) else largest


# --- engine and bank ----------------------------------------------------------------------------------------------
def _engine(
    module: ModuleOptions,
    trainer: DFLTrainer,
    federation: Federation,
    loss: Callable[[Tensor, Tensor], Tensor],
    phases: tuple[Phase, ...],
    former: RunParts | None,
    calling: Calling,
    stage: str,
) -> Engine:
    """Move the data to the run's device and build the engine, which plans the cohorts."""
    federation.data = federation.data.to(trainer.strategy.root_device)
    config = EngineConfig(
        network=module.network,
        optimizer=module.optimizer_factory,
        loss=loss,
        metrics=module.metrics,
        objective=module.objective,
        batch_size=federation.local.batch_size,
        later_batch_sizes=federation.local.later_batch_sizes(federation.planned_rounds if stage == "fit" else 1),
        seed=federation.seed,
        dtype=dtype_of_rows(trainer),
        clip_norm=trainer.clip_norm,
        clip_value=trainer.clip_value,
        reduced=torch.bfloat16 if trainer.precision == "bf16-mixed" else None,
        tf32=trainer.precision == "tf32",
        cuda_graphs=trainer.cuda_graphs,
        processes=trainer.world_size,
        cohorts=trainer.cohorts,
        room=_room(trainer, federation, None if former is not None else len(_row_sets(federation, phases))),
        scheduled=federation.local.scheduled,
        keeps_optimizer=federation.local.memory is not None,
        prediction=federation.policy(Prediction),
        watched=_watched(federation),
        task=federation.task,
        base=federation.layout.base,
        calling=calling,
    )
    engine = trainer.tried or make_engine(trainer.engine, config, federation.layout, federation.data)
    if former is not None:  # a second fit continues the first
        engine.restore_decisions(former.engine.decisions)
    return engine


def _watched(federation: Federation) -> dict[str, str]:
    """Return the selection's name, for error messages, by name of each layer whose inputs the selection uses."""
    selection = federation.require(Selection)
    return {name: f"selection {type(selection).__name__}" for name in selection.features}


def _bank(
    trainer: DFLTrainer, federation: Federation, phases: tuple[Phase, ...], engine: Engine, init_skip: Sequence[str]
) -> Bank:
    """Build the bank, with a row for each node of this process and the row sets that policies declare."""
    ranks = Ranks(_owners(trainer, federation, engine), trainer.global_rank, trainer.world_size)
    models = _first_models(federation, ranks.own.tolist(), dtype_of_rows(trainer), init_skip)
    wanted = _row_sets(federation, phases)
    initial = {"models": lambda: models.clone(), "zeros": lambda: _zero_parameters(federation.layout, models)}
    sets = {name: initial[wanted[name]]() for name in sorted(wanted)}
    numbers = federation.numbers(phase.objective for phase in phases)
    bank = Bank(federation.layout, models, federation.num_clients, sets, ranks, numbers)
    bank.timed = trainer.phase
    return bank


def _former_bank(
    trainer: DFLTrainer, federation: Federation, phases: tuple[Phase, ...], engine: Engine, former: RunParts
) -> Bank:
    """Return the bank of the run that this one continues.

    Raises:
        UserError: the bank has other clients, other row sets or another precision, or was divided among another number
            of processes.
    """
    bank = former.bank
    rows, dtype = bank.boundary.rows, dtype_of_rows(trainer)
    wanted = ["models", *sorted(_row_sets(federation, phases))]
    missing = [name for name in wanted if name not in rows]
    if federation.num_nodes != former.federation.num_nodes:
        what = f"{former.federation.num_nodes} nodes, clients and servers, and this run has {federation.num_nodes}"
    elif missing:
        what = f"no row set '{missing[0]}', which a policy or the objective of this run keeps"
    elif former.federation.layout.common != federation.layout.common:
        what = "other parameters frozen"
    elif rows["models"].dtype != dtype:
        what = f"models of {str(rows['models'].dtype)[6:]}, and this run computes in {str(dtype)[6:]}"
    elif not torch.equal(_owners(trainer, federation, engine), bank.ranks.owner):
        what = "the clients of another number of processes"
    else:
        return bank
    raise UserError(f"the module was fitted before, with {what}; make a new DFLModule")


def _owners(trainer: DFLTrainer, federation: Federation, engine: Engine) -> Tensor:
    """Return the process that each node belongs to, long [n]."""
    return owners_of(engine.cohorts, federation.num_nodes, trainer.world_size)


def _row_sets(federation: Federation, phases: tuple[Phase, ...]) -> dict[str, str]:
    """Collect the row sets of policies and objectives in addition to `models`, with their initial values."""
    return federation.row_sets(phase.objective for phase in phases)


def _first_models(federation: Federation, nodes: list[int], dtype: torch.dtype, skip: Sequence[str]) -> Tensor:
    """Create the first models of the nodes, [len(nodes), width]."""
    layout, network, init = federation.layout, federation.network, federation.init
    if init == "common":
        return layout.flatten(network, dtype).repeat(len(nodes), 1)
    if init == "independent":
        return torch.stack([layout.flatten(fresh_parameters(network, federation.seed, i), dtype) for i in nodes])
    state, remarks = _start_in_file(layout, network, init, skip)
    federation.remarks += [remark for remark in remarks if remark not in federation.remarks]
    try:
        return layout.row(state, dtype).repeat(len(nodes), 1)
    except UserError as error:
        raise UserError(f"model.init={init}: {error}") from None


def _zero_parameters(layout: Layout, models: Tensor) -> Tensor:
    """Copy the models with all parameters set to 0, [own, width]; buffers have no updates and stay as they are."""
    rows = torch.zeros_like(models)
    for start, stop in layout.buffers.ranges:
        rows[:, start:stop] = models[:, start:stop]
    return rows


def _room(trainer: DFLTrainer, federation: Federation, row_sets: int | None) -> int | None:
    """Return the bytes of the GPU that rows and data leave free, the least of all processes; None if unknown.

    Args:
        trainer: the trainer, with its device and processes.
        federation: the data, network and policies; its data are on the GPU already.
        row_sets: number of row sets in addition to `models` that are yet to be made; None: all rows exist already.
    """
    free = card.free_memory(trainer.strategy.root_device)
    if free is None:
        return None
    if row_sets is not None:
        nodes = -(-federation.num_nodes // trainer.world_size)
        sets = 2 * (1 + row_sets) + (federation.policy(Outgoing) is not None)  # 2 buffers each, and `sent`
        rows = sets * nodes * federation.layout.width * dtype_of_rows(trainer).itemsize
        if rows >= free:
            raise UserError(
                f"the models of {nodes} nodes take {size(rows)}, and the GPU has {size(free)} free "
                "in addition to the data; lower data.num_clients or use a smaller network"
            )
        free -= rows
    count = trainer.world_size if is_connected() else 1
    return Ranks(torch.zeros(1, dtype=torch.long), trainer.global_rank, count).least(free)
