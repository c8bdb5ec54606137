"""An allocation that fails, wherever it is: the right numbers or one sentence."""

import functools

import pytest
import torch
from pretended import DEVICE, Scarce, everything_on
from torch import nn

from dfl_lightning.engines.factory import make_engine
from dfl_lightning.engines.stacked.network import StackedNetwork
from dfl_lightning.utils.errors import UserError


def network():
    torch.manual_seed(0)  # the same first models in both runs
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(64, 10))


@pytest.fixture
def scarce(small_run):
    """A run whose n-th allocation fails: its rows or its sentence, and how many allocations there were."""

    def fit(n=0):
        run = small_run(1, module={"network": network(), "finetune_epochs": 1})
        with everything_on(DEVICE), Scarce(n) as memory:
            try:
                run.fit()
            except UserError as refused:
                return str(refused), memory.allocations
        return run.rows.cpu(), memory.allocations

    return fit


POINTS = 8


@pytest.mark.parametrize("part", [p if p in (1, 5) else pytest.param(p, marks=pytest.mark.slow) for p in range(POINTS)])
def test_a_run_goes_on_or_ends_in_one_sentence(scarce, part):
    expected, count = scarce()
    assert count > 500
    n = 1 + (part * count) // POINTS + 7 * part
    found, _ = scarce(n)
    if isinstance(found, str):
        assert "emory" in found
        assert "A long story" not in found
    else:
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-7)


def test_a_trial_without_memory_says_nothing_about_the_network(federation, monkeypatch):
    """Else clients would be trained one after the other, slowly, because of a moment's shortage."""

    def fails(*_):
        raise torch.OutOfMemoryError("too little")

    monkeypatch.setattr(StackedNetwork, "__call__", fails)
    with pytest.raises(torch.OutOfMemoryError):
        federation(engine=functools.partial(make_engine, "auto"))
