"""The pretended device in a test."""

import pytest
import torch
from pretended import DISORDERED, Count

from dfl_lightning.engines.stacked import engine as stacked_engine


@pytest.fixture(autouse=True)
def no_timer(monkeypatch):
    """Nothing is timed: every layer is done as it comes, and as many models as possible are evaluated at once."""
    monkeypatch.setattr(stacked_engine, "StepTimer", lambda *_: lambda: 1.0)
    monkeypatch.setattr(stacked_engine, "EvaluationTimer", lambda *_: lambda way, samples: 1.0)


@pytest.fixture
def ordered(monkeypatch):
    """Nothing that CUDA does in no fixed order is called; the option that asks for it, which Lightning never resets."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")
    torch.use_deterministic_algorithms(True)
    DISORDERED.clear()
    yield {"trainer.deterministic": "true"}
    torch.use_deterministic_algorithms(False)
    assert not DISORDERED


@pytest.fixture
def count():
    """Counts what happens on the device in the test."""
    with Count() as mode:
        yield mode
