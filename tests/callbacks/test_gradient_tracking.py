"""Gradient tracking: against plain loops, a closed-form optimum, and what it promises about sums."""

import functools

import logistic
import numpy as np
import pytest
import torch

from dfl_lightning.callbacks import Bernoulli, Gossip, Metropolis, Uniform
from dfl_lightning.objectives import GradientTracking, Plain
from dfl_lightning.utils.errors import UserError

DECAY = 0.1
gradient = functools.partial(logistic.gradient, decay=DECAY)


def federation(*policies, objective=None, lr=0.2, **settings):
    """Make a logistic regression with weight decay on uneven clients and an uneven graph."""
    return logistic.start(
        *(policies or (Gossip(k="all"), Metropolis())),
        objective=objective or GradientTracking(),
        optimizer=functools.partial(torch.optim.SGD, lr=lr, weight_decay=DECAY),
        **{"batch_size": 6, "local_epochs": 4, **settings},
    )


def clients(run):
    return [logistic.batch(run, samples) for samples in run.data.train]


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_gradient_tracking_agrees_with_the_papers_loop(engine):
    """Algorithm 1 with the mixing of models after the local steps; batches of two, so that clients differ in steps."""
    run = federation(engine=engine, batch_size=2, local_epochs=2)
    rows, corrections = run.models.numpy().copy(), np.zeros((6, 18))
    for t in range(4):
        trained, steps = rows.copy(), np.zeros((6, 1))
        for i in range(6):
            for x, y in logistic.batches(run, i, t):
                trained[i] -= 0.2 * (gradient(trained[i], x, y) + corrections[i])
                steps[i] += 1
        z = (rows - trained) / (0.2 * steps)
        corrections += logistic.metropolis() @ z - z
        rows = logistic.metropolis() @ trained
    run.go(4)
    np.testing.assert_allclose(run.models.numpy(), rows, rtol=0, atol=1e-12)
    np.testing.assert_allclose(run.rows("correction").numpy(), corrections, rtol=0, atol=1e-12)


def test_the_trackers_sum_to_the_gradients():
    """One full-batch step a round: z_i is the gradient plus the correction, and corrections sum to 0."""
    run = federation(local_epochs=1).go(5)
    for round in run.rounds:
        before, trained = round.before.numpy(), round.trained.numpy()
        z, gradients = (before - trained) / 0.2, [gradient(r, *b) for r, b in zip(before, clients(run), strict=True)]
        assert not np.allclose(z, gradients) or round.index == 0
        np.testing.assert_allclose(z.sum(0), np.sum(gradients, 0), rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("aggregation", [Metropolis, Uniform])
def test_corrections_sum_to_zero_despite_dropouts(aggregation):
    run = federation(Gossip(k=2), aggregation(), Bernoulli(0.3)).go(6)
    corrections = run.rows("correction")
    assert corrections.abs().max() > 1e-3
    assert corrections.sum(0).abs().max() < 1e-12


@pytest.mark.slow
def test_all_reach_the_common_optimum_where_dsgd_does_not():
    run = federation(lr=0.1).go(400)
    batches = clients(run)
    best = np.zeros(18)
    for _ in range(4000):  # plain descent on the mean of the clients' losses
        best -= 0.3 * np.mean([gradient(best, x, y) for x, y in batches], 0)
    best = torch.from_numpy(best)
    off = (run.models - best).norm(dim=1)
    dsgd = (federation(lr=0.1, objective=Plain()).go(400).models - best).norm(dim=1)
    assert off.max() < 1e-5
    assert dsgd.min() > 1e-2
    too_fast = (federation(lr=4.0).go(400).models - best).norm(dim=1)
    assert too_fast.min() > 0.1


def test_trackers_are_charged():
    metrics = federation().go().rounds[0].metrics
    assert metrics["models_received"] == metrics["proxies_received"] == 2
    assert metrics["bytes_received"] == 2 * 2 * 18 * 4


def test_personal_parameters_have_no_correction():
    run = federation(shared=["0.weight"]).go(3)
    corrections = run.rows("correction")
    bias = run.module.federation.layout.personal.mask(run.module.federation.layout.width)
    assert not corrections[:, bias].any()
    assert corrections[:, ~bias].any()


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"optimizer": functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9)}, "SGD without momentum"),
        ({"optimizer": torch.optim.Adam}, "SGD without momentum"),
        ({"lr_scheduler": lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.1, 100)}, "SGD without momentum"),
        ({"optimizer": lambda ps: torch.optim.SGD([{"params": [p]} for p in ps])}, "a single group of parameters"),
        ({"trainer": {"gradient_clip_val": 1.0}}, "drop trainer.gradient_clip_val"),
        ({"local_epochs": 0}, "set model.local_epochs to 1 or more"),
        ({"topology": "server", "policies": [Gossip(k="all"), Uniform()]}, "topology without servers"),
    ],
)
def test_incompatible_settings_are_refused(settings, sentence, start):
    settings = dict(settings)
    policies = settings.pop("policies", [Gossip(k="all"), Metropolis()])
    with pytest.raises(UserError, match=sentence):
        start(*policies, objective=GradientTracking(), **settings)
