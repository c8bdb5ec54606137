"""The banner: a few lines that describe a run before it starts."""

from __future__ import annotations

from dfl_lightning.callbacks import Policy
from dfl_lightning.round.run.hosts import RunModule, RunTrainer
from dfl_lightning.runs.memory_estimate import predicted_memory
from dfl_lightning.terminal.training import describe_training
from dfl_lightning.terminal.unusual import unusual_settings
from dfl_lightning.utils.memory import size


def banner(trainer: RunTrainer, module: RunModule) -> list[str]:
    """Return the lines of the banner: the method and its data, the training, the topology and engine, and notes.

    Args:
        trainer: the trainer, whose callbacks are the policies.
        module: the module after its setup, with federation and engine.
    """
    layout = module.federation.layout
    names = " + ".join(type(policy).__name__ for policy in trainer.policies())
    shared = sum(e.stop - e.start for e in layout.entries if not e.is_buffer and layout.is_shared(e))
    parameters = f"{layout.num_parameters:,} parameters each"
    if shared < layout.num_parameters:
        parameters += f", {shared:,} shared"
    frozen = sum(c.shape.numel() for c in layout.common if not c.is_buffer)
    parameters += f", {frozen:,} frozen ones once" if frozen else ""
    network = f"{type(module.federation.network).__name__} ({parameters})"
    data = trainer.datamodule.describe()
    lines = [
        f"{names} · {module.federation.num_clients} clients · {network} · {data}",
        describe_training(module),
        f"{module.federation.topology.describe()} · {describe_engine(module)} · seed {module.federation.seed}",
    ]
    lines += [line for policy in trainer.policies() if (line := policy.describe(module.federation))]
    lines += [f"note: {note}" for note in notes(trainer, module)]
    return lines


def describe_engine(module: RunModule) -> str:
    """Describe the engine: threads, cohorts, and the memory that the run will take."""
    engine = module.engine
    processes, threads, cohorts = module.bank.ranks.count, engine.threads, len(engine.cohorts)
    counts = [(threads, "thread"), (cohorts, "cohort")]
    words = [f"{count} {word}{'s' * (count > 1)}" for count, word in counts]
    each = ""
    if processes > 1:
        words, each = [f"{processes} processes with {words[0]} each", words[1]], " each"
    return f"engine: {engine.name}, {', '.join(words)}, {size(sum(predicted_memory(module).values()))}{each}"


def notes(trainer: RunTrainer, module: RunModule) -> list[str]:
    """Return notes about a run: policies without effect, ignored options and unusual settings.

    Args:
        trainer: the trainer, whose callbacks are the policies.
        module: the module after its setup, with federation and engine.
    """
    remarks = [*trainer.remarks, *unusual_settings(trainer, module)]
    if module.engine.reason:
        remarks.append(f"{module.engine.reason}; clients train one after the other")
    if "not recorded" in module.engine.details.get("graphs", ""):
        remarks.append(f"cuda_graphs: steps are {module.engine.details['graphs']}")
    if "trial" in module.engine.details:
        remarks.append(f"stacked clients were compared with plain networks {module.engine.details['trial']}")
    if "evaluation" in module.engine.details:
        remarks.append(f"evaluation takes {module.engine.details['evaluation']}")
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if isinstance(callback, Policy) and callback.switched_off:
            remarks.append(
                f"{type(callback).__name__} has no effect in this run and is ignored: no policy reads what it writes"
            )
    remarks += trainer.datamodule.notes()
    remarks += module.federation.topology.warnings()
    return remarks
