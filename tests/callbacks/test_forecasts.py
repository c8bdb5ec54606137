"""Methods on forecasts, whose lower score is the better one; choices by loss and by score as in plain loops."""

import pytest
import torch
from torch import nn

from dfl_lightning import callbacks as cb
from dfl_lightning import objectives
from dfl_lightning.data import Series
from dfl_lightning.links.draws import uniform
from dfl_lightning.utils.random_streams import stream_seed

CLIENTS = 6


@pytest.fixture
def forecasts(start):
    """A run on series of unequal length and scale."""

    def _forecasts(*policies, lr=0.2, **options):
        series = Series(num_clients=CLIENTS, window=6, horizon=2, stride=5, test_fraction=0.25, val_fraction=0.3)
        network = nn.Sequential(nn.Flatten(), nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 2))
        return start(*policies, clients=CLIENTS, data=series, network=network, lr=lr, **options)

    return _forecasts


def squared(run, row, owner, split, original=False):
    """Mean squared error of a row on a client's windows, one after the other."""
    state, errors = run.module.layout.state_dict(row), []
    for index in getattr(run.module.data, split)[owner]:
        x, y = run.module.data.batch(index[None])
        with torch.no_grad():
            outputs = torch.func.functional_call(run.module.network, state, x)
        errors += [float(error) ** 2 for error in (outputs[0] - y[0, 0]) * (y[0, 1] if original else 1)]
    return sum(errors) / len(errors)


METHODS = {
    "AFIND+": ([cb.AFIND(), cb.AdaptiveThreshold(), cb.Boltzmann()], {}),
    "PANM": ([cb.PANM(metric="grad", k=2, l=2, stage_one=1, tau=1), cb.Uniform()], {}),
    "PANM, losses": ([cb.PANM(metric="loss", k=2, l=2, stage_one=1, tau=1), cb.Uniform()], {}),
    "FL-FDMS": (
        [cb.GroupedCount(rate=1 / 3, full_first_round=True), cb.Gossip(k="all"), cb.FDMS(), cb.Uniform()],
        {"topology": "server"},
    ),
    "Ditto": ([cb.Gossip(k=2), cb.Uniform()], {"objective": objectives.Ditto(lam=0.5)}),
}


@pytest.mark.parametrize("method", METHODS)
def test_methods_lower_errors_and_report_them_in_the_original_unit(method, forecasts):
    policies, options = METHODS[method]
    run = forecasts(*policies, **options)
    first = run.module.evaluate()["test_rmse"]
    run.go(4)
    last = run.module.evaluate()["test_rmse"]
    assert float(last.mean()) < 0.8 * float(first.mean())
    if method == "Ditto":  # its personal models are evaluated
        return
    rows = run.models[[CLIENTS] * CLIENTS] if method == "FL-FDMS" else run.models
    expected = [squared(run, row, i, "test", original=True) ** 0.5 for i, row in enumerate(rows)]
    assert last.tolist() == pytest.approx(expected, rel=1e-5)


def test_pens_learns_from_those_with_the_lowest_losses(forecasts):
    run = forecasts(cb.PENS(k=2, sampled=4, top=2, stage_one=9), cb.Uniform()).go(3)
    for round in run.rounds:
        for i in range(CLIENTS):
            drawn = torch.nonzero(round.candidates[i]).squeeze(1).tolist()
            ranked = sorted(drawn, key=lambda j: squared(run, round.trained[j], i, "train"))
            assert set(torch.nonzero(round.selected[i]).squeeze(1).tolist()) == set(ranked[:2])


def greedy(run, round, k, candidates, limit, shares):
    """DPFL's algorithm 2, one candidate after the other, with sets of models and squared errors."""

    def drawn(j, what):
        return float(uniform(torch.tensor(k), torch.tensor(j), stream_seed(0, f"DPFL {what}", round.index)))

    def error(members):
        row = sum(shares[i] * round.trained[i].double() for i in members) / sum(shares[i] for i in members)
        return squared(run, row.float(), k, "val")

    def gain(before, after):
        return before - after if before - after > 1e-6 * max(1, before) else 0.0

    order = sorted(candidates, key=lambda j: drawn(j, "order"))
    x, y = {k}, {k, *order}
    for j in order:
        if len(x) - 1 >= limit:
            break
        a, b = gain(error(x), error(x | {j})), gain(error(y), error(y - {j}))
        if drawn(j, "coins") < (a / (a + b) if a + b > 0 else 1):
            x |= {j}
        else:
            y -= {j}
    return x - {k}


def test_dpfl_chooses_by_errors_and_keeps_the_model_with_the_lowest_score(forecasts):
    """The learning rate is high, so that some models are worse after a round than before."""
    run = forecasts(cb.DPFL(budget=3, initial_epochs=1), cb.Uniform(), lr=0.7).go(5)
    for i in range(CLIENTS):
        chosen = greedy(run, run.rounds[0], i, set(range(CLIENTS)) - {i}, 3, [1.0] * CLIENTS)
        assert set(torch.nonzero(run.rounds[0].selected[i]).squeeze(1).tolist()) == chosen
    kept = set()
    for i in range(CLIENTS):
        scores = [squared(run, round.trained[i], i, "val", original=True) for round in run.rounds]
        lowest = scores.index(min(scores))
        kept.add(lowest)
        assert torch.equal(run.bank.boundary.rows["best"][i], run.rounds[lowest].trained[i])
    assert len(kept) > 1
