"""As many batches for every client, however many samples it has."""

import functools
import itertools

import pytest
import torch
import torch.nn.functional as F
from banks import SEED, make_federation
from torch import nn

from dfl_lightning import DFLModule
from dfl_lightning.bank.references import References
from dfl_lightning.engines.jobs import Training
from dfl_lightning.engines.loop.loop_engine import LoopEngine
from dfl_lightning.engines.stacked import StackedEngine
from dfl_lightning.models import MLP
from dfl_lightning.objectives import Duration, Plain
from dfl_lightning.utils.errors import UserError
from tests.helpers.orders import drawn_order

SIZES = (9, 4, 14, 2)


@pytest.mark.parametrize("engine", [LoopEngine, StackedEngine])
@pytest.mark.parametrize("steps", [1, 3, 7])
def test_every_client_takes_the_given_number_of_batches(engine, steps):
    sgd = functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9)
    f = make_federation(sizes=SIZES, engine=engine, optimizer=sgd)
    before = f.bank.rows("models").clone()
    phases = Plain().phases(f.layout, Duration(99, steps), 0)
    result = f.engine.train(References.rows("models", torch.arange(4)), Training("local", 3, phases, ({"lr": 0.1},)))
    for owner, samples in enumerate(f.data.train):
        module = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).double()
        nn.utils.vector_to_parameters(before[owner].clone(), module.parameters())
        optimizer = sgd(module.parameters())
        orders = (drawn_order(len(samples), SEED, "local", 3, owner, epoch) for epoch in itertools.count())
        batches = (part for order in orders for part in samples[order].split(4))
        taken = list(itertools.islice(batches, steps))
        for part in taken:
            optimizer.zero_grad()
            F.cross_entropy(module(f.data.images[part] * 0.5 + 0.25), f.data.labels[part]).backward()
            optimizer.step()
        expected = nn.utils.parameters_to_vector(module.parameters()).detach()
        torch.testing.assert_close(f.bank.rows("trained")[owner], expected, rtol=1e-10, atol=1e-10)
        assert int(result.samples[owner]) == sum(map(len, taken))


def test_a_run_accepts_and_reports_the_option(small_run):
    run = small_run(1, module={"local_steps": 2}).fit()
    assert "MLP, local_steps=2, batch_size=16" in repr(run.module)
    assert run.module.federation.local.duration == Duration(1, 2)


@pytest.mark.parametrize("steps", [0, -1])
def test_a_number_below_1_is_refused(steps):
    with pytest.raises(UserError, match=rf"model\.local_steps={steps}; it must be 1 or more"):
        DFLModule(MLP(hidden=[4]), local_steps=steps)
