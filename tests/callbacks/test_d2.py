"""D2: against the paper's recursion in plain torch, a closed-form optimum, and what it promises about sums."""

import functools

import logistic
import networkx as nx
import numpy as np
import pytest
import torch
from logistic import GRAPH

from dfl_lightning.callbacks import Bernoulli, Gossip, Metropolis, Stale, Uniform
from dfl_lightning.objectives import D2, Plain
from dfl_lightning.utils.errors import UserError

DECAY, LR = 0.1, 0.2


def federation(*policies, objective=None, **settings):
    """Make a logistic regression with weight decay on uneven clients; full batches, one step."""
    return logistic.start(
        *(policies or (Gossip(k="all"), Metropolis())),
        objective=objective or D2(),
        optimizer=functools.partial(torch.optim.SGD, lr=LR, weight_decay=DECAY),
        **{"batch_size": 6, "local_epochs": 1, **settings},
    )


gradient = functools.partial(logistic.gradient, decay=DECAY)


@pytest.mark.parametrize(("engine", "laziness"), [("loop", 0.0), ("stacked", 0.3)])
def test_d2_agrees_with_the_papers_recursion(engine, laziness):
    """One gradient on a batch of two in each round; x(t+1) = W (2 x(t) - x(t-1) - lr g(t) + lr g(t-1))."""
    run = federation(Gossip(k="all"), Metropolis(laziness=laziness), engine=engine, batch_size=2, local_steps=1)
    weights = laziness * np.eye(6) + (1 - laziness) * logistic.metropolis()
    now = former = run.models.numpy().copy()
    former_gradients = np.zeros_like(now)
    for t in range(5):
        gradients = np.stack([gradient(now[i], *logistic.batches(run, i, t, epochs=1)[0]) for i in range(6)])
        now, former = weights @ (2 * now - former - LR * gradients + LR * former_gradients), now
        former_gradients = gradients
    np.testing.assert_allclose(run.go(5).models.numpy(), now, rtol=0, atol=1e-12)


@pytest.mark.slow
def test_all_reach_the_common_optimum_where_dsgd_does_not():
    run = federation().go(800)
    batches = [logistic.batch(run, samples) for samples in run.data.train]
    best = np.zeros(18)
    for _ in range(4000):  # plain descent on the mean of the clients' losses
        best -= 0.3 * np.mean([gradient(best, x, y) for x, y in batches], 0)
    best = torch.from_numpy(best)
    assert (run.models - best).norm(dim=1).max() < 1e-7
    assert (federation(objective=Plain()).go(800).models - best).norm(dim=1).min() > 1e-2
    sometimes_down = federation(Gossip(k="all"), Metropolis(), Bernoulli(0.3)).go(1600)
    assert (sometimes_down.models - best).norm(dim=1).max() < 1e-7


def test_the_mean_moves_by_gradients_only():
    run = federation().go(5)
    for round in run.rounds:
        pairs = zip(round.before.numpy(), run.data.train, strict=True)
        gradients = [gradient(row, *logistic.batch(run, samples)) for row, samples in pairs]
        moved = (round.after.sum(0) - round.before.sum(0)).numpy()
        np.testing.assert_allclose(moved, -LR * sum(gradients), rtol=0, atol=1e-12)


def test_corrections_sum_to_zero_despite_dropouts():
    run = federation(Gossip(k="all"), Metropolis(), Bernoulli(0.3))
    run.go(6)
    added = run.models - run.rows("descended")
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
        ((Gossip(k="all"), Metropolis(), Stale(), Bernoulli(0.3)), GRAPH, "symmetric: .*, without a substitution"),
        (
            (Gossip(k="all"), Metropolis()),
            nx.complete_bipartite_graph(3, 3),
            r"here one is -0\.50; set .*laziness 0\.5",
        ),
    ],
)
def test_weights_under_which_d2_diverges_are_refused(policies, topology, sentence):
    with pytest.raises(UserError, match=sentence):
        federation(*policies, topology=topology)


def test_eigenvalues_of_lazy_weights_equal_those_of_numpy():
    run = federation(Gossip(k="all"), Metropolis(laziness=0.5), topology=nx.complete_bipartite_graph(3, 3))
    expected = torch.tensor([0.25, 0.625, 0.625, 0.625, 0.625, 1.0], dtype=torch.float64)  # halves of -1/2, 1/4, 1
    found = run.module.federation.policies
    aggregation = next(policy for policy in found if isinstance(policy, Metropolis))
    torch.testing.assert_close(aggregation.eigenvalues(run.module.federation), expected)
    with pytest.raises(UserError, match="share of its own model"):
        Metropolis(laziness=1.0)
