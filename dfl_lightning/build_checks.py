"""Checks that the parts of a run fit together, each with a sentence that names two parts and the remedy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torchmetrics import Metric

from dfl_lightning.callbacks.base import Aggregation, Prediction, Selection, Threshold
from dfl_lightning.data import ClientData, FederatedData
from dfl_lightning.engines.stacked.loss import is_plain_cross_entropy
from dfl_lightning.objectives import Objective, Phase
from dfl_lightning.round.callback import RoundCallback
from dfl_lightning.round.federation import Federation
from dfl_lightning.round.run.per_client import ClientNumbers
from dfl_lightning.tasks import Task
from dfl_lightning.topology import Topology, load_topology
from dfl_lightning.topology.reading.normalise import WrongSize
from dfl_lightning.trainer_callbacks import check_monitored
from dfl_lightning.utils.code.constructor_arguments import arguments_of
from dfl_lightning.utils.errors import UserError
from dfl_lightning.utils.memory import machine_memory, size
from dfl_lightning.utils.randomness.global_generators import name_of

if TYPE_CHECKING:
    from dfl_lightning.trainer import DFLTrainer

_MOST_TRIED = 10_000
"""Largest number of clients among whom data are divided only to know whether it can be advised."""


# --- memory -------------------------------------------------------------------------------------------------------
def refuse_large_rows(federation: Federation, row_sets: int, dtype: torch.dtype, processes: int) -> None:
    """Raise if the models of all clients do not fit into the memory of this machine.

    Counted are the rows of one process, with the buffer that a round writes, and the base. A run needs more.

    Args:
        federation: network and numbers of nodes.
        row_sets: number of row sets in addition to `models`.
        dtype: precision of the rows.
        processes: number of processes among which the rows are divided.

    Raises:
        UserError: they need more memory than the machine has.
    """
    nodes, layout, memory = -(-federation.num_nodes // processes), federation.layout, machine_memory()
    needed = (2 + row_sets) * nodes * layout.width * dtype.itemsize + layout.base_bytes
    if memory is not None and needed > memory:
        raise UserError(
            f"model.network {type(federation.network).__name__}: the models of {nodes:,} clients of "
            f"{layout.width:,} numbers each need at least {size(needed)} of memory (this machine has {size(memory)}); "
            "lower data.num_clients, train adapters of a frozen network (models.LoRA), or start more processes on "
            "further machines (torchrun), which divide the clients"
        )


# --- topology -----------------------------------------------------------------------------------------------------
def load_run_topology(trainer: DFLTrainer, data: ClientData, seed: int) -> Topology:
    """Load the topology; if it is of another size, and the data can be divided among as many clients, say so."""
    try:
        return load_topology(trainer.topology, data.num_clients, seed)
    except WrongSize as error:
        if not _can_have(trainer.datamodule, error.nodes):
            raise
        sentence = str(error).removesuffix(".")
        raise UserError(f"{sentence}; or set data.num_clients={error.nodes}, with which these data work.") from error


def _can_have(datamodule: FederatedData, clients: int) -> bool:
    """Return True if the data can be divided among a number of clients; it is tried, since many things prevent it."""
    arguments = arguments_of(datamodule) or {}
    if not isinstance(arguments.get("num_clients"), int) or not 0 < clients <= _MOST_TRIED:
        return False
    try:
        other = type(datamodule)(**{**arguments, "num_clients": clients})
        other.setup("fit")
        return other.clients.num_clients == clients
    except Exception:  # whatever it is, the user does not get advice that leads to it
        return False


def with_neighbours(topology: Topology, numbers: ClientNumbers | None, trainer: DFLTrainer) -> Topology:
    """Return the topology with each client's number of neighbours from `model.per_client`, if it has one.

    Raises:
        UserError: the topology has such numbers, too, or the selection does not choose a number of neighbours.
    """
    if numbers is None or "k" not in numbers.columns:
        return topology
    selection = trainer.policy(Selection)
    assert selection is not None
    counts = [vars(selection)[name] for name in selection.neighbour_counts.values() if name in vars(selection)]
    own = next((count for count in counts if count == "all" or isinstance(count, int)), None)
    if "threshold" in selection.reads and trainer.policy(Threshold) is not None:
        own = "all"  # the threshold limits the choice of clients without a number
    if topology.budgets is not None:
        raise UserError(f"{numbers.where} and the topology {topology.name} both have numbers of neighbours; keep one")
    if topology.num_servers or own is None:
        none = f"selection {type(selection).__name__} has none"
        why = "clients receive from a server" if topology.num_servers else none
        raise UserError(f"{numbers.where}: a column with numbers of neighbours changes nothing, as {why}; leave it out")
    return replace(topology, budgets=numbers.neighbours(own))


def refuse_other_weights(topology: Topology, aggregation: Aggregation | None) -> None:
    """Raise if the topology prescribes a mixing matrix and the aggregation does not use it."""
    if aggregation is None or aggregation.reads_topology_weights or not any(g.mixing for g in topology.graphs):
        return
    raise UserError(
        f"topology {topology.name} prescribes a mixing matrix, which aggregation {type(aggregation).__name__} "
        "ignores; use --aggregation FromTopology"
    )


def refuse_several_servers(topology: Topology, selection: Selection | None) -> None:
    """Raise if there are several servers and the selection does not assign clients to them."""
    if topology.num_servers > 1 and selection is not None and not selection.assigns_servers:
        raise UserError(
            "several servers need a selection that assigns clients to them; "
            "use --selection IFCA, or set servers: 1 in the topology"
        )


# --- task, data and models ----------------------------------------------------------------------------------------
def refuse_without_classes(policies: Sequence[RoundCallback], objective: Objective, task: Task) -> None:
    """Raise if a policy or the objective needs classes and the task has none."""
    parts: list[RoundCallback | Objective] = [*policies, objective]
    for part in parts:
        if part.needs_classes and not task.has_classes:
            raise UserError(
                f"{part.family} {type(part).__name__} needs classes, but model.task {type(task).__name__} has none; "
                f"use another {part.family}, or data with classes"
            )


def refuse_other_losses(prediction: Prediction | None, loss: Callable[[Tensor, Tensor], Tensor]) -> None:
    """Raise if there is a prediction policy, which gives probabilities, and the loss is not the plain cross-entropy."""
    if prediction is None or is_plain_cross_entropy(loss) or loss is nn.functional.cross_entropy:
        return
    raise UserError(
        f"prediction {type(prediction).__name__} gives probabilities, whose loss is the plain cross-entropy, but "
        f"model.loss is {name_of(loss)}; use --model.loss CrossEntropyLoss without options, or "
        "--prediction null"
    )


def check_phases(federation: Federation, phases: Sequence[Phase]) -> None:
    """Raise if the objective keeps other numbers or row sets for clients that train longer or shorter than others."""
    own = federation.own_training(0)
    for several in () if own is None or own.phases is None else own.phases.values():
        kept, others = ([(p.objective.numbers, p.objective.row_sets) for p in some] for some in (phases, several))
        if kept != others:
            name = type(federation.objective).__name__
            raise UserError(
                f"objective {name} has other phases for other lengths of training; leave them out of model.per_client"
            )


def refuse_missing_data(
    trainer: DFLTrainer, data: ClientData, task: Task, stage: str, metrics: dict[str, Metric]
) -> None:
    """Raise if no client has the data that the stage evaluates, or a callback monitors what no client will have."""
    if stage == "fit":
        check_monitored(trainer.callbacks, bool(trainer.loggers), data, task, metrics)  # type: ignore[attr-defined]
    elif stage == "validate" and not int(data.sizes("val").sum()):
        raise UserError("no client has validation data to evaluate; set data.val_fraction, or use dfl-test")
    elif stage == "test" and not int(data.sizes("test").sum()) and data.global_test is None:
        raise UserError("no client has test data to evaluate; set data.test_fraction above 0, or use dfl-validate")


def refuse_broken_start(federation: Federation, models: Tensor) -> None:
    """Raise if a client's first model is not finite, since a client that diverges returns to its former model.

    Args:
        federation: the run's data, topology, network and policies.
        models: the clients' first models, [k, width].

    Raises:
        UserError: names the parameter and the remedy.
    """
    init, layout = federation.init, federation.layout
    different = models if init == "independent" else models[:1]
    if bool(different.sum().isfinite()):  # makes no copy; if the sum overflows, all entries are checked below
        return
    broken = next((column for row in different for column in torch.nonzero(~row.isfinite()).flatten().tolist()), None)
    if broken is None:
        return
    name = next(entry.name for entry in layout.entries if broken < entry.stop)
    if init in ("common", "independent"):
        what, remedy = f"model.network {type(federation.network).__name__}", "initialise it (torch.empty does not)"
    else:
        what, remedy = f"model.init={init}", "use another file"
    raise UserError(f"{what}: '{name}' holds NaN or infinity before the first round; {remedy}")
