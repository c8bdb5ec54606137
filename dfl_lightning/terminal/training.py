"""The line of the banner about local training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dfl_lightning.round.run.hosts import RunModule

OPTIONS = {"lr": "lr", "momentum": "momentum", "weight_decay": "weight decay"}
"""Words for options of an optimizer, by their names in torch. The learning rate is always shown, others if not zero."""


def describe_training(module: RunModule) -> str:
    """Describe the training of a run: objective, optimizer with its rate, local work, batch size and fine-tuning."""
    planned, durations = module.duration, [phase.duration for phase in module.parts.phases]
    work = f"{planned} a round"
    if durations != [planned]:  # an objective with several phases, or a selection that trains longer at first
        work += f" (round {module.bank.boundary.round}: {' and '.join(map(str, durations)) or 'none'})"
    batches = "full batches" if module.batch_size == "full" else f"batches of {module.batch_size}"
    batches += f", {module.batch_growth} more in each round" if module.batch_growth else ""
    local = module.federation.local
    if local.durations is not None:
        work = f"{_range([duration.steps or duration.epochs for duration in local.durations])} "
        work += f"{'epochs' if local.durations[0].steps is None else 'steps'} a round by client"
    optimizer = describe_optimizer(module.parts.optimizer.name, module.parts.optimizer.groups)
    if local.rates is not None:
        optimizer += f", lr {_range(local.rates)} by client"
    scheduler = module.parts.schedule.scheduler
    schedule = "" if scheduler is None else f" with {type(scheduler).__name__}"
    parts = [f"objective {type(module.objective).__name__}", optimizer + schedule, f"{work} in {batches}"]
    number = module.finetune_epochs
    parts.append(f"{number} epoch{'s' * (number > 1)} of fine-tuning" if number else "no fine-tuning")
    return " · ".join(parts)


def _range(numbers: Sequence[float]) -> str:
    """Describe the range of clients' numbers."""
    least, most = min(numbers), max(numbers)
    return f"{least:g} to {most:g}" if least < most else f"{least:g}"


def describe_optimizer(name: str, groups: Sequence[Mapping[str, Any]]) -> str:
    """Describe an optimizer and its most important options; values that differ between groups are split by slashes.

    Args:
        name: the name of its class.
        groups: the options of each parameter group.

    Examples:
        >>> describe_optimizer("SGD", [{"lr": 0.05, "momentum": 0.9, "weight_decay": 0}])
        'SGD (lr 0.05, momentum 0.9)'
        >>> describe_optimizer("Adam", [{"lr": 0.01}, {"lr": 0.001}])
        'Adam (lr 0.01/0.001)'
    """
    shown = []
    for option, word in OPTIONS.items():
        values = list(dict.fromkeys(f"{float(group.get(option) or 0):g}" for group in groups))
        if option == "lr" or values != ["0"]:
            shown.append(f"{word} {'/'.join(values)}")
    return f"{name} ({', '.join(shown)})"
