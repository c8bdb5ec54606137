"""The losses of others' models by the number of models that are computed at once, and by the arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from benchmarks.federations import SETTINGS, Federation, Setting, built, federation, random_data
from benchmarks.tables import Table
from benchmarks.timing import Candidate, alternate
from torch.utils.flop_counter import FlopCounterMode

from dfl_lightning.bank.references import References
from dfl_lightning.distributed.communicator import Ranks
from gpu.scope import Scope

WIDTHS = (1, 4, 16, 100)
ARITHMETIC: dict[str, dict[str, Any]] = {
    "float32": {},
    "tf32": {"tf32": True},
    "bf16": {"reduced": torch.bfloat16},
}


def losses(scope: Scope) -> Table:
    """Measure the losses of each client's models of others, by width and arithmetic."""
    setting = next(s for s in SETTINGS if s.name == ("MNISTCNN" if scope.small else "CNN4"))
    neighbours = min(10, scope.clients - 1)
    widths = sorted({min(width, scope.clients) for width in WIDTHS})
    table = Table(
        f"Losses of {scope.clients} models on {neighbours} clients' {scope.images} images each, {setting.name}",
        ["arithmetic", *(f"{width} at once: s" for width in widths), "fastest", "chosen", "TFLOP/s there"],
    )
    setting = setting.resized(scope.clients, None)
    data = random_data(setting.shape, [1] * scope.clients, scope.images, scope.device)
    models = torch.arange(scope.clients).repeat_interleave(neighbours)
    owners = (models + 1 + torch.arange(neighbours).repeat(scope.clients)) % scope.clients
    references = References.rows("models", models, owners, "models")
    operations = forward_operations(setting) * len(models) * scope.images
    for name, options in ARITHMETIC.items():
        clients = federation(setting, "stacked", data, **options)
        chosen = chosen_width(clients, models, scope.images)
        candidates = {str(width): Candidate(_evaluation(clients, references, width)) for width in widths}
        found = alternate(candidates, scope.repeats, scope.machine)
        seconds = {width: found.median(str(width)) for width in widths}
        best = min(seconds, key=lambda width: seconds[width])
        rate = operations / seconds[best] / 1e12
        table.rows.append([name, *(f"{seconds[width]:.3g}" for width in widths), f"{best}", f"{chosen}", f"{rate:.3g}"])
        numbers = {"arithmetic": name, "seconds": found.seconds, "chosen": chosen, "operations": operations}
        table.numbers.append(numbers)
    table.notes = [
        "Chosen: what a run would choose by the times of single passes.",
        "An operation is a multiplication or an addition of the forward pass, as torch counts them.",
    ]
    return table


def chosen_width(clients: Federation, models: torch.Tensor, images: int) -> int:
    """Return the number of models at once that a run would choose by the times of single passes.

    Args:
        clients: the federation, whose engine is tuned.
        models: the model of each job, long [j].
        images: images of each job.
    """
    engine = clients.engine
    engine.tune_to_device(Ranks.alone(clients.engine.data.num_clients))
    scorer = engine._scorer  # type: ignore[attr-defined]
    width: int = scorer.way(torch.bincount(models) * images).width
    scorer.measured = None  # The widths of the table are given.
    return width


def forward_operations(setting: Setting) -> int:
    """Count the operations of one sample's forward pass."""
    network = built(setting).eval()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        network(torch.zeros(1, *setting.shape))
    return int(counter.get_total_flops())


def _evaluation(clients: Federation, references: References, width: int) -> Callable[[], int]:
    scorer = clients.engine._scorer  # type: ignore[attr-defined]

    def run() -> int:
        before, scorer.width = scorer.width, width
        try:
            clients.engine.evaluate(references, "val")
        finally:
            scorer.width = before
        return 1

    return run
