"""Sizes of the stages, and the device on which they run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from benchmarks.timing import Machine

from dfl_lightning.engines.stacked.gpu.cuda_graphs import CudaGraphs, Recorder


@dataclass(frozen=True)
class Scope:
    """Device and sizes of a stage.

    Args:
        device: a torch device, `cuda:0` for example.
        clients: clients of a federation.
        images: training and held-out images of each client.
        small: networks and models are the small ones, and nothing is repeated: for a trial of the script itself.
        recorder: makes a recorder of steps; None: steps are not recorded.
        peak: returns the largest memory that tensors had since `reset`, in bytes; None: it is not known.
    """

    device: str
    clients: int = 100
    images: int = 400
    small: bool = False
    recorder: Callable[[], Recorder] | None = None
    peak: Callable[[bool], int] | None = None

    @property
    def machine(self) -> Machine:
        """The clock of the stages; it waits for the GPU."""
        return Machine(self.device, torch.get_num_threads())

    @property
    def repeats(self) -> int:
        """Repetitions of a measurement that count."""
        return 1 if self.small else 3

    def run_options(self, **options: Any) -> dict[str, Any]:
        """Return options of a command for runs on this device."""
        return {"trainer.accelerator": "gpu" if self.device.startswith("cuda") else "cpu", **options}


def cuda_scope() -> Scope:
    """Return the full sizes on the first GPU."""
    return Scope("cuda:0", recorder=CudaGraphs, peak=_cuda_peak)


def _cuda_peak(reset: bool) -> int:
    torch.cuda.synchronize()
    if reset:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        return int(torch.cuda.memory_allocated())
    return int(torch.cuda.max_memory_allocated())
