"""QG-DSGDm against a plain loop in numpy, written from algorithm 1 of the paper, and what it promises besides."""

import functools

import logistic
import networkx as nx
import numpy as np
import pytest
import torch
from logistic import RATE, SIZES, gradient, metropolis

from dfl_lightning.callbacks import Bernoulli, Gossip, Metropolis, Uniform
from dfl_lightning.objectives import Plain, QGDSGDm
from dfl_lightning.utils.errors import UserError


def start(rule, *others, **settings):
    return logistic.start(Gossip(k="all"), Metropolis(), *others, objective=rule, **settings)


def step(gradient, buffer, beta, nesterov):
    momentum = beta * buffer + gradient
    return gradient + beta * momentum if nesterov else momentum


@pytest.mark.parametrize(("mu", "nesterov"), [(None, False), (0.6, True)])
@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_qg_dsgdm_agrees_with_the_papers_loop(engine, mu, nesterov):
    """Clients with different numbers of steps, some of them down now and then, and a rate that falls."""
    schedule = functools.partial(torch.optim.lr_scheduler.ExponentialLR, gamma=0.7)
    run = start(QGDSGDm(0.9, mu, nesterov), Bernoulli(0.3), engine=engine, lr_scheduler=schedule)
    x, buffers, was_down = run.models.numpy().copy(), np.zeros((6, 18)), 0
    for t in range(5):
        up, lr = run.go(1).rounds[-1].participants.tolist(), RATE * 0.7**t
        was_down += up.count(False)
        half, steps = x.copy(), np.ones(6)
        for i in (i for i in range(6) if up[i]):
            taken = logistic.batches(run, i, t)
            steps[i] = len(taken)
            for one in taken:
                half[i] -= lr * step(gradient(half[i], *one), buffers[i], 0.9, nesterov)
        mixed = metropolis(up) @ half
        for i in (i for i in range(6) if up[i]):
            kept = 0.9 if mu is None else mu
            buffers[i] = kept * buffers[i] + (1 - kept) * (x[i] - mixed[i]) / (lr * steps[i])
        x = mixed
        np.testing.assert_allclose(run.models.numpy(), x, rtol=0, atol=1e-12)
        np.testing.assert_allclose(run.rows("momentum").numpy(), buffers, rtol=0, atol=1e-11)
    assert was_down


def test_the_buffer_of_equal_clients_converges_to_its_fixed_point():
    """One data set, one model, one step a round: heavy-ball's 1 / (1 - beta), from a constant gradient."""

    def slope(scores, labels):
        return scores.mean()

    graph = nx.complete_graph(4)
    run = start(QGDSGDm(0.5), topology=graph, sizes=[2] * 4, local_epochs=1, loss=slope, init="common").go(90)
    bias = run.rows("momentum")[:, 15:]
    torch.testing.assert_close(bias, torch.full_like(bias, 2 / 3), rtol=0, atol=1e-9)


def test_qg_dsgdm_differs_from_local_momentum_after_mixing():
    ours = start(QGDSGDm(0.9), local_epochs=1, batch_size=9)
    momentum = functools.partial(torch.optim.SGD, lr=RATE, momentum=0.9)
    local = start(Plain(), local_epochs=1, batch_size=9, optimizer=momentum, keep_optimizer=True)
    torch.testing.assert_close(ours.go(1).models, local.go(1).models, rtol=0, atol=1e-12)
    assert (ours.go(1).models - local.go(1).models).abs().max() > 1e-3


def test_personal_parameters_have_no_momentum():
    run = start(QGDSGDm(), shared=["0.weight"]).go(3)
    personal = run.module.federation.layout.personal.mask(run.module.federation.layout.width)
    rows = run.rows("momentum")
    assert not rows[:, personal].any()
    assert rows[:, ~personal].any()


def test_a_round_without_a_rate_keeps_the_buffers():
    schedule = functools.partial(torch.optim.lr_scheduler.LambdaLR, lr_lambda=lambda t: float(t < 2))
    run = start(QGDSGDm(), lr_scheduler=schedule).go(2)
    before = run.rows("momentum").clone()
    assert torch.equal(run.go(1).rows("momentum"), before)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: QGDSGDm(1.0), r"objective\.momentum=1\.0; it must be at least 0 and below 1"),
        (lambda: QGDSGDm(mu=float("nan")), r"objective\.mu=nan; it must be"),
        (lambda: start(QGDSGDm(), optimizer=torch.optim.Adam), "QGDSGDm reads mean gradients .* SGD without momentum"),
        (lambda: start(QGDSGDm(), trainer={"gradient_clip_val": 1.0}), "QGDSGDm .*drop trainer.gradient_clip_val"),
        (lambda: start(QGDSGDm(), local_epochs=0), "QGDSGDm needs local steps"),
        (
            lambda: start(
                QGDSGDm(nesterov=True), optimizer=functools.partial(torch.optim.SGD, lr=0.1, weight_decay=0.1)
            ),
            "nesterov .*weight_decay to 0",
        ),
        (
            lambda: logistic.start(Gossip(k="all"), Uniform(), topology="server", sizes=SIZES, objective=QGDSGDm()),
            "topology without servers",
        ),
    ],
)
def test_impossible_settings_are_refused(make, sentence):
    with pytest.raises(UserError, match=sentence):
        make()
