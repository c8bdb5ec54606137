"""Memory of one federation: run in a process of its own, prints one line of JSON.

`bench_memory.py` starts it as `python -m benchmarks.resident '{"network": "LeNet", ...}'`.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import functools
import gc
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.rounds import ClusteredImages, quietly
from dfl_lightning import DFLModule, DFLTrainer, models
from dfl_lightning.callbacks import AFIND, Uniform
from dfl_lightning.runs.memory_estimate import predicted_memory

STATUS = Path("/proc/self/status")


def resident(what: str) -> int:
    """Read `VmRSS` (now) or `VmHWM` (highest so far) of this process, in bytes."""
    (line,) = (line for line in STATUS.read_text().splitlines() if line.startswith(f"{what}:"))
    return 1024 * int(line.split()[1])


def settle() -> None:
    """Give back what was freed, and forget the former peak."""
    gc.collect()
    library = ctypes.util.find_library("c")
    if library is not None and hasattr(ctypes.CDLL(library), "malloc_trim"):
        ctypes.CDLL(library).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")


def federate(
    network: Callable[[], models.Network], clients: int, samples: int, batch_size: int, rounds: int
) -> DFLModule:
    """Run rounds of AFIND's selection, which compares all pairs, without checkpoints and evaluation."""
    with tempfile.TemporaryDirectory() as folder, quietly():
        trainer = DFLTrainer(
            max_rounds=rounds,
            callbacks=[AFIND(k=min(10, clients - 1)), Uniform()],
            accelerator="cpu",
            default_root_dir=folder,
            enable_progress_bar=False,
            enable_checkpointing=False,
        )
        optimizer = functools.partial(torch.optim.SGD, lr=0.01, momentum=0.9)
        module = DFLModule(network(), local_epochs=1, batch_size=batch_size, optimizer=optimizer)
        trainer.fit(module, datamodule=ClusteredImages(samples, num_clients=clients, test_fraction=0.0, seed=0))
    return module


def main(words: dict[str, Any]) -> dict[str, Any]:
    """Measure the growth of the resident set, from before rows and data are made to its peak; add the prediction."""
    make = getattr(models, words["network"])
    federate(models.LeNet, 2, 4, 4, 2)  # libraries allocate and compile on their first use
    settle()
    before, started = resident("VmRSS"), time.perf_counter()
    module = federate(make, *(words[name] for name in ("clients", "samples", "batch_size", "rounds")))
    return {
        **words,
        "before": before,
        "grown": resident("VmHWM") - before,
        "predicted": predicted_memory(module),
        "engine": module.engine.name,
        "parameters": module.federation.layout.num_parameters,
        "seconds": time.perf_counter() - started,
    }


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
