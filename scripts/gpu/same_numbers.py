"""Runs of shipped configs on the CPU and on the device, compared."""

from __future__ import annotations

import os
import tempfile

import torch
from benchmarks.rounds import quietly
from benchmarks.tables import Table

from dfl_lightning.cli.arguments import split
from dfl_lightning.cli.command import DFLCLI, read
from dfl_lightning.utils.storage.shipped_files import shipped
from gpu.scope import Scope

CONFIGS = ("afind", "dpfl", "panm_grad")
TOLERANCES = {"64-true": 1e-10, "32": 1e-4}
"""Largest difference of models after two rounds, relative to the largest entry, by `trainer.precision`."""


def same_numbers(scope: Scope) -> Table:
    """Compare the models of two rounds on the CPU and on the device, relative to the largest entry.

    Raises:
        AssertionError: they differ by more than rounding.
    """
    precisions = ["64-true"] if scope.small else list(TOLERANCES)
    table = Table("The same numbers on both devices", ["config", *precisions])
    for config in CONFIGS[: 1 if scope.small else None]:
        apart = {precision: _difference(config, precision, scope) for precision in precisions}
        table.rows.append([config, *(f"{apart[precision]:.0e}" for precision in precisions)])
        table.numbers.append({"config": config, **apart})
    table.notes = ["Largest difference of an entry of a model after two rounds, relative to the largest entry."]
    for row in table.numbers:
        for precision in precisions:
            assert row[precision] <= TOLERANCES[precision], (
                f"{row['config']} in {precision}: models differ by {row[precision]:.1e}"
            )
    return table


def _difference(config: str, precision: str, scope: Scope) -> float:
    here = _models(config, precision, {"trainer.accelerator": "cpu"}, "cpu")
    there = _models(config, precision, scope.run_options(), scope.device)
    return float((here - there).abs().max() / here.abs().max())


def _models(config: str, precision: str, options: dict[str, object], device: str) -> torch.Tensor:
    """Run two small rounds and return the models, [n, width] on the CPU."""
    before = dict(os.environ)
    with tempfile.TemporaryDirectory() as folder, quietly():
        given = {
            "config": shipped("configs")[config],
            "trainer.default_root_dir": folder,
            "trainer.enable_progress_bar": "false",
            "trainer.max_rounds": 2,
            "trainer.precision": precision,
            "model.local_epochs": 1,
            "data.samples_per_client": 24,
            **options,
        }
        try:
            module = DFLCLI("fit", read(split([f"--{key}={value}" for key, value in given.items()]))).model
        finally:
            os.environ.clear()
            os.environ.update(before)
    return module.bank.boundary.rows["models"].cpu().double()
