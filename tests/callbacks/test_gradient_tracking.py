"""Gradient tracking: against plain loops, a closed-form optimum, and what it promises about sums."""

import functools

import networkx as nx
import pytest
import torch
from torch.nn.functional import cross_entropy

from dfl_lightning.callbacks import Bernoulli, Gossip, Metropolis, Uniform
from dfl_lightning.objectives import GradientTracking, Plain
from dfl_lightning.utils.errors import UserError
from dfl_lightning.utils.random_streams import stream

DECAY = 0.1


@pytest.fixture
def federation(start, make_data):
    """Logistic regression with weight decay on uneven clients and an uneven graph: a triangle with a tail."""

    def _start(*policies, objective=None, lr=0.2, engine="loop", data=None, **settings):
        graph = nx.Graph([(0, 1), (1, 2), (0, 2), (2, 3), (3, 4), (4, 5)])
        return start(
            *(policies or (Gossip(k="all"), Metropolis())),
            topology=graph,
            data=make_data(sizes=[6, 3, 5, 2, 4, 6]) if data is None else data,
            objective=objective or GradientTracking(),
            network=torch.nn.Sequential(torch.nn.Linear(5, 3)),
            optimizer=functools.partial(torch.optim.SGD, lr=lr, weight_decay=DECAY),
            rounds=1000,
            trainer={"precision": "64-true", "engine": engine},
            **{"batch_size": 6, "local_epochs": 4, "init": "independent", **settings},
        )

    return _start


def gradient(row, x, y):
    """Of a client's mean loss with weight decay, by plain torch on a row [15 + 3]."""
    row = row.clone().requires_grad_()
    loss = cross_entropy(x @ row[:15].view(3, 5).T + row[15:], y) + DECAY / 2 * row.square().sum()
    return torch.autograd.grad(loss, row)[0]


def clients(run):
    data = run.module.data
    return [data.batch(samples, dtype=torch.float64) for samples in data.train]


def metropolis(graph):
    weights = torch.zeros(6, 6, dtype=torch.float64)
    for i, j in graph.edges:
        weights[i, j] = weights[j, i] = 1 / (1 + max(graph.degree[i], graph.degree[j]))
    return weights + torch.diag(1 - weights.sum(1))


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_it_agrees_with_the_papers_loop(engine, federation):
    """Algorithm 1 with the mixing of models after the local steps; batches of two, so that clients differ in steps."""
    run = federation(engine=engine, batch_size=2, local_epochs=2)
    data, weights, lr = run.module.data, metropolis(run.module.topology.graph), 0.2
    rows, corrections = run.models.clone(), torch.zeros_like(run.models)
    for t in range(4):
        trained, steps = rows.clone(), []
        for i in range(6):
            parts = []
            for epoch in range(2):
                order = torch.randperm(len(data.train[i]), generator=stream(0, "local batches", t, i, epoch))
                parts += data.train[i][order].split(2)
            for part in parts:
                trained[i] -= lr * (gradient(trained[i], *data.batch(part, dtype=torch.float64)) + corrections[i])
            steps.append(len(parts))
        z = (rows - trained) / (lr * torch.tensor(steps, dtype=torch.float64)[:, None])
        corrections = corrections - z + weights @ z
        rows = weights @ trained
    run.go(4)
    torch.testing.assert_close(run.models, rows, rtol=0, atol=1e-12)
    torch.testing.assert_close(run.bank.boundary.rows["correction"], corrections, rtol=0, atol=1e-12)


def test_the_trackers_sum_to_the_gradients(federation):
    """One full-batch step a round: z_i is the gradient plus the correction, and corrections sum to 0."""
    run = federation(local_epochs=1).go(5)
    for round in run.rounds:
        z = (round.before - round.trained) / 0.2
        gradients = torch.stack([gradient(row, *batch) for row, batch in zip(round.before, clients(run), strict=True)])
        assert not torch.allclose(z, gradients) or round.index == 0
        torch.testing.assert_close(z.sum(0), gradients.sum(0))


@pytest.mark.parametrize("aggregation", [Metropolis, Uniform])
def test_corrections_sum_to_zero_whoever_is_down(aggregation, federation):
    run = federation(Gossip(k=2), aggregation(), Bernoulli(0.3)).go(6)
    corrections = run.bank.boundary.rows["correction"]
    assert corrections.abs().max() > 1e-3
    assert corrections.sum(0).abs().max() < 1e-12


@pytest.mark.slow
def test_all_reach_the_common_optimum_where_dsgd_does_not(federation):
    run = federation(lr=0.1).go(400)
    batches = clients(run)
    best = torch.zeros(18, dtype=torch.float64)
    for _ in range(4000):  # plain descent on the mean of the clients' losses
        best -= 0.3 * torch.stack([gradient(best, x, y) for x, y in batches]).mean(0)
    off = (run.models - best).norm(dim=1)
    dsgd = (federation(lr=0.1, objective=Plain()).go(400).models - best).norm(dim=1)
    assert off.max() < 1e-5
    assert dsgd.min() > 1e-2
    too_fast = (federation(lr=4.0).go(400).models - best).norm(dim=1)
    assert too_fast.min() > 0.1


def test_trackers_are_paid_for(federation):
    metrics = federation().go().rounds[0].metrics
    assert metrics["models_received"] == metrics["proxies_received"] == 2
    assert metrics["bytes_received"] == 2 * 2 * 18 * 4


def test_personal_parameters_have_no_correction(federation):
    run = federation(shared=["0.weight"]).go(3)
    corrections = run.bank.boundary.rows["correction"]
    bias = run.module.layout.personal.mask(run.module.layout.width)
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
def test_what_cannot_work_is_refused(settings, sentence, start):
    settings = dict(settings)
    policies = settings.pop("policies", [Gossip(k="all"), Metropolis()])
    with pytest.raises(UserError, match=sentence):
        start(*policies, objective=GradientTracking(), **settings)
