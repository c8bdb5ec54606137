"""Whole rounds: the papers' systems, the tasks of two other simulators, and several GPUs."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from benchmarks.rounds import VERBS, run_config
from benchmarks.tables import Table

from dfl_lightning.utils.storage.shipped_files import shipped
from gpu.scope import Scope

SYSTEMS = ("afind", "dpfl", "panm_grad")
TASKS = {
    "pfl's: 50 clients, 50 images, B 10, 1 epoch": (50, 50, 10, 1),
    "BlazeFL's: 100 clients, 500 images, B 50, 5 epochs": (100, 500, 50, 5),
}
"""Clients, images of each, batch size and local epochs of the CIFAR-10 tasks with which others measure themselves."""


def rounds(scope: Scope) -> Table:
    """Measure the rounds of AFIND+, DPFL and PANM in seconds, by what they do."""
    network, epochs = ("LeNet", 1) if scope.small else ("CNN4", 5)
    table = Table(
        f"Rounds of {scope.clients} clients with {scope.images} images of 3 x 32 x 32, {network}: seconds",
        ["config", "precision", "round", *VERBS, "rest"],
    )
    for config in SYSTEMS[: 1 if scope.small else None]:
        for precision in ("32",) if scope.small else ("32", "tf32", "bf16-mixed"):
            options = {"model__network": network, "model__local_epochs": epochs, "trainer__precision": precision}
            options["model__batch_size"] = 8 if scope.small else 128
            _add(table, [config, precision], scope, config, scope.clients, scope.images, options)
    table.notes = ["Medians over rounds without the first; evaluate holds the losses of others' models."]
    return table


def tasks(scope: Scope) -> Table:
    """Measure rounds of FedAvg on the tasks of other simulators, in seconds."""
    table = Table("Rounds of FedAvg on others' tasks, LeNet: seconds", ["task", "round", *VERBS, "rest"])
    for name, (clients, images, batch_size, epochs) in list(TASKS.items())[: 1 if scope.small else None]:
        if scope.small:
            clients, images = scope.clients, scope.images
        options = {"model__batch_size": batch_size, "model__local_epochs": epochs}
        _add(table, [name], scope, "fedavg", clients, images, options)
    table.notes = ["A quarter of the images is held out. The others' networks are larger or smaller than LeNet."]
    return table


def devices(scope: Scope) -> Table:
    """Measure rounds of gossip on 1, 2 and 4 GPUs, and compare their models."""
    table = Table("Rounds on several GPUs, gossip: seconds", ["GPUs", "round", *VERBS, "rest"])
    there = torch.cuda.device_count()
    counts = [count for count in (1, 2, 4) if count <= there]
    if len(counts) < 2:
        table.notes = [f"This machine has {there} GPU{'s' * (there != 1)}, so there is nothing to compare."]
        return table
    for count in counts:
        _add(table, [str(count)], scope, "gossip", scope.clients, scope.images, {"trainer__devices": count})
    return table


def _add(
    table: Table, head: list[str], scope: Scope, config: str, clients: int, images: int, options: Mapping[str, object]
) -> None:
    path, count = shipped("configs")[config], 1 if scope.small else 3
    _, clock = run_config(path, "stacked", clients, images, count, scope.device, **options)
    found = clock.medians()
    table.rows.append([*head, *(f"{found[name]:.3g}" for name in ("wall", *VERBS, "rest"))])
    table.numbers.append({"row": head, "rounds": clock.rounds})
