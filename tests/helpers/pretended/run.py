"""Whole runs on the pretended device."""

from contextlib import contextmanager

import pytest
from lightning.pytorch.accelerators import CPUAccelerator
from lightning.pytorch.strategies import SingleDeviceStrategy
from threads import threads

from pretended.device import DEVICE


@contextmanager
def everything_on(device=DEVICE):
    """Runs of one process inside have their models and data on `device`; Lightning believes itself on a CPU."""
    with threads(1), pytest.MonkeyPatch.context() as patch:
        patch.setattr(SingleDeviceStrategy, "root_device", property(lambda strategy: device))
        patch.setattr(CPUAccelerator, "setup_device", lambda accelerator, device: None)
        yield
