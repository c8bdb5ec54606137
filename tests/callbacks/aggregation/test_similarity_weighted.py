"""pFedGraph: the graph against scipy's optimizer, whole rounds and the local term against plain modules."""

import copy
import itertools
from functools import partial

import numpy as np
import pytest
import torch
from conformance.own import pfedgraph
from scipy.optimize import minimize
from tester.scenes import FEDERATION, ISOLATED, ROUNDS, SIZES, UP, start
from tester.shipped import Listed
from torch.nn.functional import cosine_similarity, cross_entropy

from dfl_lightning import callbacks as cb
from dfl_lightning.conformance.cases import read_all
from dfl_lightning.functional import graph_rows, nearest_on_simplex
from dfl_lightning.links import Links
from dfl_lightning.objectives import PFedGraph
from dfl_lightning.utils.errors import UserError
from tests.helpers.orders import drawn_order


def test_the_projection_is_the_nearest_point_of_the_simplex():
    g = torch.Generator().manual_seed(0)
    mask = torch.rand(8, 6, generator=g) < 0.7
    mask[3] = False
    links = Links.from_mask(mask)
    points = torch.randn(len(links), generator=g, dtype=torch.float64) * 2
    found = nearest_on_simplex(points, links)
    for i in range(8):
        mine = links.receivers == i
        if not mine.any():
            continue
        v = points[mine].numpy()
        best = minimize(
            lambda x, v=v: ((x - v) ** 2).sum(),
            np.full(len(v), 1 / len(v)),
            jac=lambda x, v=v: 2 * (x - v),
            bounds=[(0, None)] * len(v),
            constraints={"type": "eq", "fun": lambda x: x.sum() - 1, "jac": np.ones_like},
            method="SLSQP",
            options={"ftol": 1e-15, "maxiter": 500},
        )
        np.testing.assert_allclose(found[mine].numpy(), best.x, atol=1e-6)
        assert abs(float(found[mine].sum()) - 1) < 1e-12


def test_the_rows_minimise_the_papers_objective():
    cosines, sizes = np.array([1.0, 0.3, -0.6, 0.8]), np.array([10.0, 40, 20, 30])
    links = Links.from_mask(torch.ones(1, 4, dtype=torch.bool))
    found = graph_rows(torch.tensor(cosines), torch.tensor(sizes), links, 0.8).numpy()
    p = sizes / sizes.sum()

    def cost(x):
        return -(x * cosines).sum() + 0.8 * ((x - p) ** 2).sum()

    g = np.random.default_rng(0)
    for other in g.dirichlet(np.ones(4), 2000):
        assert cost(found) <= cost(other) + 1e-12
        assert cost(found) <= cost(0.99 * found + 0.01 * other) + 1e-12


def test_cosines_above_alike_count_as_one():
    (case,) = [case for case in read_all()["pfedgraph"].cases if case.name.endswith("alike 0.9")]
    row = pfedgraph(**case.inputs)["weights"][0]
    # p + cos / (2 alpha) = 0.875, 0.875, 0.75, 0.875 by hand: a quarter of the sum above 1 is taken from each
    np.testing.assert_allclose(row, [0.28125, 0.28125, 0.15625, 0.28125], atol=1e-12)


def local_work(run, number, owner, w, direction, lam):
    """Train by plain SGD on the loss and the paper's term, by autograd."""
    data, samples = run.data, run.data.train[owner]
    module = copy.deepcopy(run.module.network).double()
    torch.nn.utils.vector_to_parameters(w.clone(), module.parameters())
    for epoch in itertools.count():
        if epoch == 1:
            break
        order = drawn_order(len(samples), 0, "local", number, owner, epoch)
        for part in samples[order].split(max(SIZES)):
            x, y = data.batch(part, dtype=torch.float64)
            vector = torch.cat([p.flatten() for p in module.parameters()])
            loss = cross_entropy(module(x), y) - lam * (vector @ direction) / vector.norm()
            grads = torch.autograd.grad(loss, list(module.parameters()))
            with torch.no_grad():
                for p, g in zip(module.parameters(), grads, strict=True):
                    p -= 0.3 * g
    return torch.nn.utils.parameters_to_vector(module.parameters()).detach()


@pytest.mark.parametrize(("engine", "lam", "sign"), [("loop", 0.5, 1), ("stacked", 0.5, 1), ("stacked", 0.5, -1)])
def test_each_round_is_that_of_the_paper(engine, lam, sign):
    listed = Listed("pfedgraph", cb.SimilarityWeighted, company=(partial(cb.Gossip, k="all"),))
    objective = PFedGraph(lam, "towards" if sign > 0 else "printed")
    run = start(listed, "clients", engine=engine, objective=objective)
    w0, directions = run.models.clone(), torch.zeros_like(run.models)
    sizes = torch.tensor([len(part) for part in run.data.train], dtype=torch.float64)
    for number in range(ROUNDS):
        before = run.models.clone()
        run.go()
        seen, up = run.rounds[-1], [i for i in FEDERATION if UP[number][i] == "1"]
        if not up:
            continue
        trained = before.clone()
        for i in up:
            trained[i] = local_work(run, number, i, before[i], directions[i], sign * lam)
        torch.testing.assert_close(seen.trained, trained, rtol=0, atol=1e-9)
        for i in up:
            near = {(i + s) % ISOLATED for s in (-2, -1, 1, 2)} if i != ISOLATED else set()
            who = sorted((near & set(up)) | {i})
            cosines = cosine_similarity(trained[who] - w0[who], (trained[i] - w0[i])[None])
            v = sizes[who] / sizes[who].sum() + cosines / 1.6
            low, high = float(v.min()) - 1, float(v.max())  # the threshold of the projection, by bisection
            for _ in range(200):
                middle = (low + high) / 2
                low, high = (middle, high) if float((v - middle).clamp(min=0).sum()) > 1 else (low, middle)
            x = (v - low).clamp(min=0)
            torch.testing.assert_close(run.models[i], x @ trained[who], rtol=0, atol=1e-9)
            directions[i] = (x / trained[who].norm(dim=1)) @ trained[who]
        torch.testing.assert_close(run.rows("direction"), directions, rtol=0, atol=1e-9)


def test_only_models_are_sent():
    listed = Listed("pfedgraph", cb.SimilarityWeighted, company=(partial(cb.Gossip, k="all"),))
    metrics = start(listed, "clients", objective=PFedGraph()).go(1).rounds[0].metrics
    assert metrics["proxies_received"] == 0
    assert metrics["models_received"] > 0


def test_stored_rows_are_refused_before_training_and_friends_are_not():
    company = (partial(cb.Gossip, k="all"),)
    with pytest.raises(
        UserError, match=r"SimilarityWeighted compares the models .* Stale mixes stored ones; use --substitution"
    ):
        start(Listed("pfedgraph", cb.SimilarityWeighted, company=(*company, cb.Stale)), "clients")
    start(Listed("pfedgraph", cb.SimilarityWeighted, company=(*company, cb.FDMS)), "clients").go(ROUNDS)
