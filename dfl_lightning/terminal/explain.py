"""The option `--explain`: the plan and the costs of a run that is not started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dfl_lightning.checkpoints.io import look_at_checkpoint, rounds_in, run_of
from dfl_lightning.engines.local_work import Duration
from dfl_lightning.round.run.hosts import RunModule, RunTrainer
from dfl_lightning.runs.memory_estimate import predicted_memory
from dfl_lightning.terminal.banner import banner
from dfl_lightning.terminal.frozen_parameters import describe_base
from dfl_lightning.topology import Topology, reach
from dfl_lightning.utils.memory import size


def explain(
    trainer: RunTrainer, module: RunModule, datamodule: Any, checkpoint: str | None = None, fork: bool = False
) -> list[str]:
    """Set up a run without training it, and return the lines of its banner and of its costs.

    Args:
        trainer: the trainer, with its callbacks and options.
        module: not yet set up.
        datamodule: the clients' data.
        checkpoint: the checkpoint from which the run would continue.
        fork: True if the run would continue in a new run folder.

    Raises:
        UserError: a setting is wrong, or the checkpoint does not belong to this run.
    """
    trainer.prepare(module, datamodule)
    done, run = 0, None
    if checkpoint is not None:
        trainer.resumed_from, trainer.fork = checkpoint, fork
        module.on_load_checkpoint(look_at_checkpoint(checkpoint))
        done, run = rounds_in(Path(checkpoint)), None if fork else run_of(checkpoint)
    data, layout = module.federation.data, module.federation.layout
    models = module.bank.boundary.rows["models"]
    images = data.images.numel() * data.images.element_size()
    sizes = data.sizes("train")
    evaluations = (trainer.max_epochs or 0) // (trainer.check_val_every_n_epoch or 1)
    sets = ", ".join(module.bank.boundary.rows)
    row_sets = len(module.bank.boundary.rows)
    neighbours = in_reach(module.federation.topology, trainer.max_epochs or 0)
    return [
        *banner(trainer, module),
        f"rounds: {trainer.max_epochs}, evaluated {evaluations} times" + f"; {done} are done" * bool(done),
        f"local work of a round: {_local_work(module, sizes.tolist())}",
        f"rows: {row_sets} set{'s' * (row_sets > 1)} ({sets}) of {models.shape[0]} x {models.shape[1]:,} "
        f"{str(models.dtype)[6:]}, {size(models.numel() * models.element_size())} each",
        *([f"base: {base}"] if (base := describe_base(layout)) else []),
        f"data: {len(data.labels):,} samples resident, {size(images)}",
        f"engine: {_cohorts(module)}",
        f"memory besides the libraries: {_memory(module)}",
        f"neighbours in reach: {neighbours}; a model is {size(4 * len(layout.shared))} on the wire",
        f"run folder: {run or f'{trainer.runs_root}/{trainer.run_name}/<time>'}",
        "nothing was trained",
    ]


def _local_work(module: RunModule, sizes: list[int]) -> str:
    """Describe how long a client trains, and the total steps and samples; `sizes` are all clients' training samples."""
    durations = [phase.duration for phase in module.parts.phases]
    length = " and ".join(map(str, durations))
    if all(duration.steps is None for duration in durations):
        length = str(Duration(sum(duration.epochs for duration in durations)))
    own = module.federation.own_training(0)
    if own is not None and own.durations is not None:
        length = "its own length for each client (model.per_client)"
    steps = samples = 0
    for client, size_ in enumerate(sizes):
        phases = module.parts.phases if own is None else own.phases_of(client, module.parts.phases)
        for phase in phases:
            steps += phase.duration.batches(-(-size_ // module.federation.local.batch_size))
            samples += phase.duration.samples(size_, module.federation.local.batch_size)
    grows = bool(module.federation.local.later_batch_sizes(None))
    first = " in round 0; batches grow from then on" if grows else ""
    return f"{length}, {steps:,} optimizer steps, {samples:,} samples over all clients{first}"


def _cohorts(module: RunModule) -> str:
    engine = module.engine
    sizes = [len(cohort) for cohort in engine.cohorts]
    each = f"{min(sizes)} to {max(sizes)}" if min(sizes) < max(sizes) else str(sizes[0])
    how = "clients of a cohort side by side" if engine.name == "stacked" else "clients one after the other"
    why = f" ({engine.reason})" if engine.reason else ""
    details = "".join(f"; {name}: {_joined(value)}" for name, value in engine.details.items())
    return f"{engine.name}, {how}{why}; {len(sizes)} cohorts of {each} clients, {engine.threads} at a time{details}"


def _joined(value: str | list[str]) -> str:
    return value if isinstance(value, str) else ", ".join(value)


def _memory(module: RunModule) -> str:
    parts = predicted_memory(module)
    words = {"rows": "rows", "data": "data", "work": "work under way", "links": "links and clients"}
    listed = " + ".join(f"{size(parts[name])} {word}" for name, word in words.items())
    return f"{size(sum(parts.values()))} = {listed}"


def in_reach(topology: Topology, rounds: int) -> str:
    """Describe how many in-neighbours a client has: the mean, and the range over rounds if the topology changes."""
    neighbours = reach(topology, rounds)
    mean = f"{neighbours.mean:.1f} on average"
    if not topology.changes:
        return mean
    counted = f" ({neighbours.rounds} of {rounds} rounds counted)" if neighbours.rounds < rounds else ""
    return f"{mean}, {neighbours.least} to {neighbours.most} in a round{counted}"
