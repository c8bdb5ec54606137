"""How clients train, in one line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dfl_lightning.round.hosts import RunModule

OPTIONS = {"lr": "lr", "momentum": "momentum", "weight_decay": "weight decay"}
"""Options of an optimizer that are named, by their names in torch. A learning rate always is, others if not zero."""


def describe_training(module: RunModule) -> str:
    """Name the objective, the optimizer with its rate, the local work, the batch size and the fine-tuning of a run.

    Args:
        module: set up.
    """
    own, durations = module.duration, [phase.duration for phase in module.phases]
    work = f"{own} a round"
    if durations != [own]:  # an objective with several phases, or a selection that trains longer at first
        work += f" (round {module.bank.boundary.round}: {' and '.join(map(str, durations)) or 'none'})"
    batches = "full batches" if module.batch_size == "full" else f"batches of {module.batch_size}"
    optimizer = describe_optimizer(module.client_optimizer.name, module.client_optimizer.groups)
    scheduler = module.schedule.scheduler
    schedule = "" if scheduler is None else f" with {type(scheduler).__name__}"
    parts = [f"objective {type(module.objective).__name__}", optimizer + schedule, f"{work} in {batches}"]
    number = module.finetune_epochs
    parts.append(f"{number} epoch{'s' * (number > 1)} of fine-tuning" if number else "no fine-tuning")
    return " · ".join(parts)


def describe_optimizer(name: str, groups: Sequence[Mapping[str, Any]]) -> str:
    """Name an optimizer and its most important options; groups that differ are separated by slashes.

    Args:
        name: of its class.
        groups: the options of each group of parameters.

    Examples:
        >>> describe_optimizer("SGD", [{"lr": 0.05, "momentum": 0.9, "weight_decay": 0}])
        'SGD (lr 0.05, momentum 0.9)'
        >>> describe_optimizer("Adam", [{"lr": 0.01}, {"lr": 0.001}])
        'Adam (lr 0.01/0.001)'
    """
    said = []
    for option, word in OPTIONS.items():
        values = list(dict.fromkeys(f"{float(group.get(option) or 0):g}" for group in groups))
        if option == "lr" or values != ["0"]:
            said.append(f"{word} {'/'.join(values)}")
    return f"{name} ({', '.join(said)})"
