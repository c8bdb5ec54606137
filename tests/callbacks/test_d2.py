"""D2: against the paper's recursion in plain torch, a closed-form optimum, and what it promises about sums."""

import functools

import logistic
import networkx as nx
import numpy as np
import pytest
import torch
from logistic import GRAPH

from dfl_lightning.callbacks import Bernoulli, Gossip, Metropolis, Uniform
from dfl_lightning.objectives import D2, Plain
from dfl_lightning.utils.errors import UserError
from dfl_lightning.utils.random_streams import stream

DECAY, LR = 0.1, 0.2


def federation(*policies, objective=None, **settings):
    """Logistic regression with weight decay on uneven clients; full batches, one step."""
    return logistic.start(
        *(policies or (Gossip(k="all"), Metropolis())),
        objective=objective or D2(),
        optimizer=functools.partial(torch.optim.SGD, lr=LR, weight_decay=DECAY),
        **{"batch_size": 6, "local_epochs": 1, **settings},
    )


def gradient(row, x, y):
    """Of a client's mean loss with weight decay, in closed form on a row [15 + 3]."""
    return torch.from_numpy(logistic.gradient(row.numpy(), x.numpy(), y.numpy())) + DECAY * row


def mixing(laziness):
    return laziness * torch.eye(6, dtype=torch.float64) + (1 - laziness) * torch.from_numpy(
        logistic.metropolis(np.ones(6, dtype=bool))
    )


@pytest.mark.parametrize(("engine", "laziness"), [("loop", 0.0), ("stacked", 0.3)])
def test_it_agrees_with_the_papers_recursion(engine, laziness):
    """One gradient on a batch of two in each round; x(t+1) = W (2 x(t) - x(t-1) - lr g(t) + lr g(t-1))."""
    run = federation(Gossip(k="all"), Metropolis(laziness=laziness), engine=engine, batch_size=2, local_steps=1)
    data, weights = run.module.data, mixing(laziness)
    now, former, former_gradients = run.models.clone(), None, None
    for t in range(5):
        gradients = []
        for i in range(6):
            order = torch.randperm(len(data.train[i]), generator=stream(0, "local batches", t, i, 0))
            gradients.append(gradient(now[i], *data.batch(data.train[i][order][:2], dtype=torch.float64)))
        gradients = torch.stack(gradients)
        if former is None:
            later = weights @ (now - LR * gradients)
        else:
            later = weights @ (2 * now - former - LR * gradients + LR * former_gradients)
        now, former, former_gradients = later, now, gradients
    torch.testing.assert_close(run.go(5).models, now, rtol=0, atol=1e-12)


@pytest.mark.slow
def test_all_reach_the_common_optimum_where_dsgd_does_not():
    run = federation().go(800)
    batches = [run.module.data.batch(samples, dtype=torch.float64) for samples in run.module.data.train]
    best = torch.zeros(18, dtype=torch.float64)
    for _ in range(4000):  # plain descent on the mean of the clients' losses
        best -= 0.3 * torch.stack([gradient(best, x, y) for x, y in batches]).mean(0)
    assert (run.models - best).norm(dim=1).max() < 1e-7
    assert (federation(objective=Plain()).go(800).models - best).norm(dim=1).min() > 1e-2
    sometimes_down = federation(Gossip(k="all"), Metropolis(), Bernoulli(0.3)).go(1600)
    assert (sometimes_down.models - best).norm(dim=1).max() < 1e-7


def test_the_mean_moves_by_gradients_only():
    run = federation().go(5)
    data = run.module.data
    for round in run.rounds:
        gradients = [
            gradient(row, *data.batch(samples, dtype=torch.float64))
            for row, samples in zip(round.before, data.train, strict=True)
        ]
        moved = round.after.sum(0) - round.before.sum(0)
        torch.testing.assert_close(moved, -LR * sum(gradients), rtol=0, atol=1e-12)


def test_what_is_added_sums_to_zero_whoever_is_down():
    run = federation(Gossip(k="all"), Metropolis(), Bernoulli(0.3))
    run.go(6)
    added = run.models - run.bank.boundary.rows["descended"]
    assert any(round.dropped.any() for round in run.rounds)
    assert added.abs().max() > 1e-3
    assert added.sum(0).abs().max() < 1e-12


def test_personal_parameters_only_descend():
    usual = federation(objective=Plain(), shared=["0.weight"]).go(3)
    run = federation(shared=["0.weight"], objective=D2()).go(3)
    personal = run.module.bank.layout.personal
    first = [one.rounds[0].after[:, torch.arange(15, 18)] for one in (usual, run)]
    assert len(personal) == 3
    torch.testing.assert_close(*first, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("policies", "topology", "sentence"),
    [
        ((Gossip(k="all"), Uniform()), GRAPH, "needs mixing weights that are symmetric: --aggregation Metropolis"),
        ((Gossip(k=1), Metropolis()), GRAPH, "needs mixing weights that are symmetric"),
        (
            (Gossip(k="all"), Metropolis()),
            nx.complete_bipartite_graph(3, 3),
            r"here one is -0\.50; set .*laziness 0\.5",
        ),
    ],
)
def test_weights_under_which_it_diverges_are_refused(policies, topology, sentence):
    with pytest.raises(UserError, match=sentence):
        federation(*policies, topology=topology)


def test_a_lazier_matrix_is_taken_and_its_eigenvalues_are_those_of_numpy():
    run = federation(Gossip(k="all"), Metropolis(laziness=0.5), topology=nx.complete_bipartite_graph(3, 3))
    expected = torch.tensor([0.25, 0.625, 0.625, 0.625, 0.625, 1.0], dtype=torch.float64)  # halves of -1/2, 1/4, 1
    found = run.module.federation.policies
    aggregation = next(policy for policy in found if isinstance(policy, Metropolis))
    torch.testing.assert_close(aggregation.eigenvalues(run.module.federation), expected)
    with pytest.raises(UserError, match="share of its own model"):
        Metropolis(laziness=1.0)
