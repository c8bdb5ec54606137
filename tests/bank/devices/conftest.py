"""The pretended device in a test."""

import pytest
import torch
from pretended import Count

from dfl_lightning.bank.stacked import engine as stacked_engine


@pytest.fixture(autouse=True)
def no_stopwatch(monkeypatch):
    """Nothing is timed: every layer is done as it comes."""
    monkeypatch.setattr(stacked_engine, "Stopwatch", lambda *_: lambda: 1.0)


@pytest.fixture
def count():
    """Counts what happens on the device in the test."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with Count() as mode:
        yield mode
    torch.set_num_threads(threads)
