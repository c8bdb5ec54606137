"""Random networks on all tasks: the stacked engine computes what the loop engine does, client by client.

Embeddings with padding, causal attention, convolutions, norms and dropout layers, clients of unequal size, batches with
padding, clipped gradients, weights of samples, losses of users. The loop engine is compared with plain torch elsewhere.
"""

import pytest
import torch
from banks import make_federation
from game.networks import NETWORKS, draw_federation

from dfl_lightning.bank.references import References, Term
from dfl_lightning.engines import engine as engines
from dfl_lightning.engines.loop import scratch
from dfl_lightning.engines.loop.loop_engine import LoopEngine
from dfl_lightning.engines.stacked import StackedEngine, evaluation
from dfl_lightning.engines.stacked import engine as stacked_engine

QUICK = 2 * len(NETWORKS)
"""Each network with each of its tasks."""


def close(one, other, what):
    torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9, equal_nan=True, msg=lambda text: f"{what}: {text}")


def everything(engine, seed):
    """Return an engine's rows, losses, gradients and scores of a random federation, by name."""
    f = make_federation(engine=engine, **draw_federation(seed))
    own = References.rows("models", torch.arange(f.m))
    first = f.engine.train(own, f.training())
    g = torch.Generator().manual_seed(seed)
    owners = torch.randint(0, f.m, (5,), generator=g)
    mixed = torch.rand(5, f.m + 1, generator=g, dtype=torch.float64)
    shares = mixed / mixed.sum(1, keepdim=True)
    jobs = {
        "own models": own,
        "others' models": References.rows("trained", torch.randint(0, f.m, (5,), generator=g), owners),
        "mixtures": References((Term("models", 0.5 * shares), Term("trained", 0.5 * shares)), owners),
    }
    if not f.layout.has_personal_parameters:
        jobs["server"] = References.rows("models", torch.tensor([f.m, 0]), torch.tensor([-1, -1]))
    found = {
        "rows": f.bank.rows("trained").clone(),
        "losses": first.losses,
        "samples": first.samples,
        "gradients": f.engine.gradients(own, f.training(gradients=True)),
        "gradients of a batch": f.engine.gradients(own, f.training(gradients=True, batches=1)),
    }
    for name, references in jobs.items():
        for split in ("train", "test"):
            scores = f.engine.evaluate(references, split)
            found |= {f"{name}, {split}, {key}": value for key, value in scores.metrics.items()}
            found[f"{name}, {split}, loss"] = scores.losses
    return found


@pytest.mark.parametrize("seed", [*range(QUICK), *(pytest.param(s, marks=pytest.mark.slow) for s in range(QUICK, 600))])
def test_the_stacked_engine_computes_what_the_loop_does(seed, monkeypatch):
    for place in (engines, scratch, evaluation):
        monkeypatch.setattr(place, "EVALUATION_BATCH", 3)
    monkeypatch.setattr(stacked_engine, "GLOBAL_PIECE", 6)
    one, other = (everything(engine, seed) for engine in (LoopEngine, StackedEngine))
    assert one.keys() == other.keys()
    assert one["rows"].isfinite().all()
    for what, values in one.items():
        close(other[what], values, f"seed {seed}, {what}")
